"""Command traces: the device records the commands of a sequence of ops and replays them without the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mesh.device import Mesh

_COMMAND_QUEUE = 0


class Trace:
    """A recorded sequence of ops. A replay reads and writes the same tensors, with their current values."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._id = mesh.tt.begin_trace_capture(mesh.handle, cq_id=_COMMAND_QUEUE)

    def _end(self) -> None:
        self._mesh.tt.end_trace_capture(self._mesh.handle, self._id, cq_id=_COMMAND_QUEUE)

    def execute(self) -> None:
        """Start a replay without waiting for it; reading a tensor waits."""
        self._mesh.tt.execute_trace(self._mesh.handle, self._id, cq_id=_COMMAND_QUEUE, blocking=False)

    def release(self) -> None:
        """Free the device memory that holds the commands."""
        self._mesh.tt.release_trace(self._mesh.handle, self._id)


@contextmanager
def capture_trace(mesh: Mesh) -> Iterator[Trace]:
    """Record the ops of the block without running them. Their results are undefined until `Trace.execute`.

    Raises:
        RuntimeError: the device can't record: slow dispatch, a read or write in the block, or too little memory.
    """
    trace = Trace(mesh)
    try:
        yield trace
    except BaseException:
        trace._end()
        trace.release()
        raise
    trace._end()
