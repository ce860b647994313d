"""Traces: the commands of a stretch of operations, recorded on the device and repeated by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mesh.device import Mesh

_QUEUE = 0


class Trace:
    """What `capture` recorded. It repeats the same operations on the same tensors, whatever these hold by then."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._id = mesh.tt.begin_trace_capture(mesh.handle, cq_id=_QUEUE)

    def _end(self) -> None:
        self._mesh.tt.end_trace_capture(self._mesh.handle, self._id, cq_id=_QUEUE)

    def execute(self) -> None:
        """Start the operations once more; reading a tensor waits for them."""
        self._mesh.tt.execute_trace(self._mesh.handle, self._id, cq_id=_QUEUE, blocking=False)

    def release(self) -> None:
        """Give the device its memory back."""
        self._mesh.tt.release_trace(self._mesh.handle, self._id)


@contextmanager
def capture(mesh: Mesh) -> Iterator[Trace]:
    """Record the operations of the block, without running them: their results are undefined until `execute`.

    Raises RuntimeError where the device can't: slow dispatch, a read or write in the block, no room.
    """
    trace = Trace(mesh)
    try:
        yield trace
    except BaseException:
        trace._end()
        trace.release()
        raise
    trace._end()
