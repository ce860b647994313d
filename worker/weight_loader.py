"""Weights on their way onto the mesh: they arrive on the event loop, and the device thread puts them there.

A pass of the training step may begin as soon as the first of them are on the mesh. Before it uses a parameter that is
not, it takes what has arrived and waits for the rest, so that the mesh has one thread all the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from services.errors import TiermeshError
from services.tensors.chunk_messages import TensorChunk
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS, Entry, chunk_range
from worker.step_interface import Step


class LeaseDropped(TiermeshError):
    """The lease under way was dropped; nobody wants what it would give."""


class WeightInbox:
    """Chunks that have arrived and that the device thread has yet to take. The one object that both threads call."""

    def __init__(self) -> None:
        self._chunks: deque[TensorChunk] = deque()
        self._changed = threading.Condition()

    def put(self, chunk: TensorChunk) -> bool:
        """A chunk came; whether it is the only one that is waiting."""
        with self._changed:
            self._chunks.append(chunk)
            self._changed.notify()
            return len(self._chunks) == 1

    def wake(self) -> None:
        """Have whoever waits look again."""
        with self._changed:
            self._changed.notify()

    def take(self) -> list[TensorChunk]:
        """All that came since the last call."""
        with self._changed:
            chunks = list(self._chunks)
            self._chunks.clear()
        return chunks

    def wait(self, ended: Callable[[], bool], seconds: float) -> bool:
        """Wait for a chunk, or until `ended`; False: neither came within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._chunks) or ended(), seconds)


class WeightLoader:
    """Puts chunks of one version after the other on the mesh, parameter by parameter. Of the device thread.

    Float32 weights in memory that the aggregator shares are read where they lie. It may go on to newer ones meanwhile:
    then those that were being read are of no use to anybody, and the newer ones are on their way.

    Args:
        step: whose parameters they are.
        fetch: called by a pass before it uses a parameter whose value has not been put on the mesh yet, with the index
            of its layout entry; returns when it has.
        begun: called when the first chunk of a version has come.

    Attributes:
        loaded: how many parameters of the newest version are on the mesh: the first ones of the layout.
    """

    def __init__(self, step: Step, fetch: Callable[[int], None], begun: Callable[[], None]) -> None:
        self._step = step
        self._fetch = fetch
        self._begun = begun
        self._weights: Float32Array = np.empty(step.layout.elements, np.float32)
        self._in_place: dict[int, TensorChunk] = {}  # chunks that lie in shared memory, not in `_weights`
        self._arrived: set[int] = set()
        self._version = (0, 0)
        self._overtaken = False
        self._complete_to = 0
        self.loaded = 0

    def load(self, chunk: TensorChunk) -> bool:
        """Take a chunk; every parameter that it completes goes onto the mesh. True: it was the last of its version."""
        header = chunk.header
        version = (header.generation, header.step)
        if version != self._version:
            self._version, self._overtaken, self.loaded, self._complete_to = version, False, 0, 0
            self._arrived.clear()
            self._in_place.clear()
            self._step.expect(self._fetch)
            self._begun()
        self._take(chunk)
        layout = self._step.layout
        while self._complete_to < layout.elements and self._complete_to // CHUNK_ELEMENTS in self._arrived:
            self._complete_to = chunk_range(layout.elements, self._complete_to // CHUNK_ELEMENTS)[1]
        while self.loaded < len(layout.entries) and not self._overtaken:
            entry = layout.entries[self.loaded]
            if entry.stop > self._complete_to:
                break
            chunks = range(entry.offset // CHUNK_ELEMENTS, -(-entry.stop // CHUNK_ELEMENTS))
            self._step.load(self.loaded, self._values(entry, chunks))
            self._overtaken = not all(
                self._in_place[each].intact for each in chunks if each in self._in_place
            )
            self.loaded += not self._overtaken
        complete = self.loaded == len(layout.entries)
        if complete:
            self._in_place.clear()  # lets go of the memory
        return complete

    def _take(self, chunk: TensorChunk) -> None:
        index = chunk.header.index
        if chunk.whole_layout() is not None:
            self._in_place[index] = chunk
        else:
            start, stop = chunk_range(self._weights.size, index)
            chunk.copy_to(self._weights[start:stop])
            self._overtaken |= not chunk.intact
        self._arrived.add(index)

    def _values(self, entry: Entry, chunks: range) -> Float32Array:
        """A parameter, [size] float32: where its chunks lie, if that is one place."""
        found = [self._in_place[each] for each in chunks if each in self._in_place]
        whole = found[0].whole_layout() if len(found) == len(chunks) else None
        if whole is not None and all(chunk.memory is found[0].memory for chunk in found):
            return whole[entry.offset : entry.stop]
        for chunk in found:
            start, stop = chunk_range(self._weights.size, chunk.header.index)
            chunk.copy_to(self._weights[start:stop])
        return self._weights[entry.offset : entry.stop]

    @property
    def missing_chunk(self) -> int:
        """The first chunk that has not arrived."""
        return self._complete_to // CHUNK_ELEMENTS
