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
from services.tensors.kernels import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS, chunk_range
from services.tensors.wire import TensorChunk
from worker.step import TrainingStep


class GivenUp(TiermeshError):
    """The lease under way was dropped; nobody wants what it would give."""


class Inbox:
    """Chunks that have arrived and that the device thread has yet to take. The one object that both threads call."""

    def __init__(self) -> None:
        self._chunks: deque[TensorChunk] = deque()
        self._changed = threading.Condition()

    def put(self, chunk: TensorChunk) -> None:
        """A chunk came."""
        with self._changed:
            self._chunks.append(chunk)
            self._changed.notify()

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


class Loader:
    """Puts chunks of one version after the other on the mesh, parameter by parameter. Of the device thread.

    Args:
        step: whose parameters they are.
        fetch: called by a pass before it uses a parameter whose value has not been put on the mesh yet, with the index
            of its layout entry; returns when it has.

    Attributes:
        loaded: how many parameters of the newest version are on the mesh: the first ones of the layout.
    """

    def __init__(self, step: TrainingStep, fetch: Callable[[int], None]) -> None:
        self._step = step
        self._fetch = fetch
        self._weights: Float32Array = np.empty(step.layout.elements, np.float32)
        self._arrived: set[int] = set()
        self._version = (0, 0)
        self._complete_to = 0
        self.loaded = 0

    def load(self, chunk: TensorChunk) -> bool:
        """Take a chunk; every parameter that it completes goes onto the mesh. True: it was the last of its version."""
        header = chunk.header
        version = (header.generation, header.step)
        if version != self._version:
            self._version, self.loaded, self._complete_to = version, 0, 0
            self._arrived.clear()
            self._step.expect(self._fetch)
        layout = self._step.layout
        start, stop = chunk_range(layout.elements, header.index)
        self._weights[start:stop] = chunk.values()
        self._arrived.add(header.index)
        while self._complete_to < layout.elements and self._complete_to // CHUNK_ELEMENTS in self._arrived:
            self._complete_to = chunk_range(layout.elements, self._complete_to // CHUNK_ELEMENTS)[1]
        while self.loaded < len(layout.entries):
            entry = layout.entries[self.loaded]
            if entry.stop > self._complete_to:
                return False
            self._step.load(self.loaded, self._weights[entry.offset : entry.stop])
            self.loaded += 1
        return True

    @property
    def missing_chunk(self) -> int:
        """The first chunk that has not arrived."""
        return self._complete_to // CHUNK_ELEMENTS
