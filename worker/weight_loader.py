"""Weights on their way to the mesh: they arrive on the event loop, and the device thread puts them on the mesh.

A pass may begin when the first weights are on the mesh. Before it uses a parameter that is not there yet, it loads the
chunks that have arrived and waits for the rest. So only one thread ever touches the mesh.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable

import numpy as np

from services.protocol.versions import Version
from services.tensors.chunk_messages import TensorChunk
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Entry
from services.tensors.layout_parts import Piece
from worker.layout_share import LayoutShare
from worker.step_interface import Step


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
        share: the worker's share of the layout, whose pieces arrive; the others take no memory.
        fetch: callback, called by a pass before it uses a parameter that is not on the mesh yet, with the index of its
            layout entry; returns when the parameter is on the mesh.
        on_new_version: callback, called when the first piece of a version has arrived.
    """

    def __init__(
        self,
        step: Step,
        share: LayoutShare,
        fetch: Callable[[int], None],
        on_new_version: Callable[[], None],
    ) -> None:
        self._step = step
        self._entries = share.entries
        self._pieces = share.loads
        self._fetch = fetch
        self._on_new_version = on_new_version
        self._weights: Float32Array = np.empty(share.loads.elements, np.float32)
        self._shared: dict[int, TensorChunk] = {}  # pieces that are read in shared memory, not in `_weights`
        self._arrived: set[int] = set()  # places of pieces
        self._version = Version(0, 0)
        self._overwritten = False
        self._next_place = 0  # all pieces before this one have arrived
        self._loaded = 0  # number of entries on the mesh: the first ones

    def has(self, entry: int) -> bool:
        """Return whether the newest version's parameter of a layout entry is on the mesh."""
        return bisect_left(self._entries, entry) < self._loaded

    def load(self, chunk: TensorChunk) -> bool:
        """Put the parameters that a piece completes on the mesh; return whether it was the last of its version."""
        header = chunk.header
        version = Version(header.generation, header.step)
        if version != self._version:
            self._version, self._overwritten, self._loaded, self._next_place = version, False, 0, 0
            self._arrived.clear()
            self._shared.clear()
            self._step.expect(self._fetch)
            self._on_new_version()
        self._take(chunk)
        while self._next_place in self._arrived:
            self._next_place += 1
        while self._loaded < len(self._entries) and not self._overwritten:
            index = self._entries[self._loaded]
            places = self._places(self._step.layout.entries[index])
            if places.stop > self._next_place:
                break
            self._step.load(index, self._values(self._step.layout.entries[index], places))
            self._overwritten = not all(self._shared[each].intact for each in places if each in self._shared)
            self._loaded += not self._overwritten
        complete = self._loaded == len(self._entries)
        if complete:
            self._shared.clear()  # unmaps the memory
        return complete

    def _take(self, chunk: TensorChunk) -> None:
        header = chunk.header
        place = self._pieces.place_of(Piece(header.index, header.offset, header.elements))
        assert place is not None, "the core lets no others through"
        if chunk.whole_layout() is not None:
            self._shared[place] = chunk
        else:
            chunk.copy_to(self._own(header.offset, header.elements))
            self._overwritten |= not chunk.intact
        self._arrived.add(place)

    def _values(self, entry: Entry, places: range) -> Float32Array:
        """Return a parameter, [size] float32; a view if all its pieces lie in the same memory."""
        found = [self._shared[each] for each in places if each in self._shared]
        whole = found[0].whole_layout() if len(found) == len(places) else None
        if whole is not None and all(chunk.memory is found[0].memory for chunk in found):
            return whole[entry.offset : entry.stop]
        for chunk in found:
            chunk.copy_to(self._own(chunk.header.offset, chunk.header.elements))
        return self._own(entry.offset, entry.size)

    def _own(self, offset: int, elements: int) -> Float32Array:
        """Return the place of some elements of the layout, of one part, in this worker's array."""
        start = self._pieces.find(offset)
        assert start is not None
        return self._weights[start : start + elements]

    def _places(self, entry: Entry) -> range:
        """Return the places of the pieces that a parameter is in."""
        start = self._pieces.find(entry.offset)
        assert start is not None
        return range(self._pieces.place_from(start + 1) - 1, self._pieces.place_from(start + entry.size))

    @property
    def missing_chunk(self) -> int:
        """Index of the first chunk of which a piece has not arrived."""
        return self._pieces[min(self._next_place, len(self._pieces) - 1)].chunk
