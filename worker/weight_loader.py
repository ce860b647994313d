"""Weights on their way to the mesh: they arrive on the event loop, and the device thread puts them on the mesh.

A pass may begin when the first weights are on the mesh. Before it uses a parameter that is not there yet, it loads the
chunks that have arrived and waits for the rest. So only one thread ever touches the mesh.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from services.errors import TiermeshError
from services.protocol.versions import Version
from services.tensors.chunk_messages import TensorChunk
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS, Entry, chunk_range
from worker.step_interface import Step


class LeaseDropped(TiermeshError):
    """The lease under way was dropped: its result is not needed."""


class WeightInbox:
    """Chunks that have arrived and are not on the mesh yet. The event loop puts, the device thread takes."""

    def __init__(self) -> None:
        self._chunks: deque[TensorChunk] = deque()
        self._changed = threading.Condition()

    def put(self, chunk: TensorChunk) -> bool:
        """Add a chunk; return whether it is the only one."""
        with self._changed:
            self._chunks.append(chunk)
            self._changed.notify()
            return len(self._chunks) == 1

    def wake(self) -> None:
        """Let a waiting thread check its condition again."""
        with self._changed:
            self._changed.notify()

    def take(self) -> list[TensorChunk]:
        """Remove and return all chunks."""
        with self._changed:
            chunks = list(self._chunks)
            self._chunks.clear()
        return chunks

    def wait(self, ended: Callable[[], bool], seconds: float) -> bool:
        """Wait for a chunk or until `ended` returns True; return False if neither happens in time."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._chunks) or ended(), seconds)


class WeightLoader:
    """Loader that puts one weight version after another on the mesh, by parameter, on the device thread.

    Float32 weights in memory that the aggregator shares are read in place. The aggregator may overwrite them with newer
    weights meanwhile. Then the rest of the old version is skipped, because the newer one is on its way.

    Args:
        step: the step whose parameters the weights are.
        fetch: callback, called by a pass before it uses a parameter that is not on the mesh yet, with the index of its
            layout entry; returns when the parameter is on the mesh.
        on_new_version: callback, called when the first chunk of a version has arrived.

    Attributes:
        loaded: number of parameters of the newest version that are on the mesh: the first ones of the layout.
    """

    def __init__(self, step: Step, fetch: Callable[[int], None], on_new_version: Callable[[], None]) -> None:
        self._step = step
        self._fetch = fetch
        self._on_new_version = on_new_version
        self._weights: Float32Array = np.empty(step.layout.elements, np.float32)
        self._shared: dict[int, TensorChunk] = {}  # chunks that are read in shared memory, not in `_weights`
        self._arrived: set[int] = set()
        self._version = Version(0, 0)
        self._overwritten = False
        self._arrived_to = 0  # all elements before this one have arrived
        self.loaded = 0

    def load(self, chunk: TensorChunk) -> bool:
        """Put the parameters that a chunk completes on the mesh; return whether it was the last of its version."""
        header = chunk.header
        version = Version(header.generation, header.step)
        if version != self._version:
            self._version, self._overwritten, self.loaded, self._arrived_to = version, False, 0, 0
            self._arrived.clear()
            self._shared.clear()
            self._step.expect(self._fetch)
            self._on_new_version()
        self._take(chunk)
        layout = self._step.layout
        while self._arrived_to < layout.elements and self._arrived_to // CHUNK_ELEMENTS in self._arrived:
            self._arrived_to = chunk_range(layout.elements, self._arrived_to // CHUNK_ELEMENTS)[1]
        while self.loaded < len(layout.entries) and not self._overwritten:
            entry = layout.entries[self.loaded]
            if entry.stop > self._arrived_to:
                break
            chunks = range(entry.offset // CHUNK_ELEMENTS, -(-entry.stop // CHUNK_ELEMENTS))
            self._step.load(self.loaded, self._values(entry, chunks))
            self._overwritten = not all(self._shared[each].intact for each in chunks if each in self._shared)
            self.loaded += not self._overwritten
        complete = self.loaded == len(layout.entries)
        if complete:
            self._shared.clear()  # unmaps the memory
        return complete

    def _take(self, chunk: TensorChunk) -> None:
        index = chunk.header.index
        if chunk.whole_layout() is not None:
            self._shared[index] = chunk
        else:
            start, stop = chunk_range(self._weights.size, index)
            chunk.copy_to(self._weights[start:stop])
            self._overwritten |= not chunk.intact
        self._arrived.add(index)

    def _values(self, entry: Entry, chunks: range) -> Float32Array:
        """Return a parameter, [size] float32; a view if all its chunks lie in the same memory."""
        found = [self._shared[each] for each in chunks if each in self._shared]
        whole = found[0].whole_layout() if len(found) == len(chunks) else None
        if whole is not None and all(chunk.memory is found[0].memory for chunk in found):
            return whole[entry.offset : entry.stop]
        for chunk in found:
            start, stop = chunk_range(self._weights.size, chunk.header.index)
            chunk.copy_to(self._weights[start:stop])
        return self._weights[entry.offset : entry.stop]

    @property
    def missing_chunk(self) -> int:
        """Index of the first chunk that has not arrived."""
        return self._arrived_to // CHUNK_ELEMENTS
