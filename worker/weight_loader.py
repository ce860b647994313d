"""Weights on their way to the mesh: they arrive on the event loop, and the device thread puts them on the mesh.

A pass may begin when the first weights are on the mesh. Before it uses a parameter that is not there yet, it loads the
chunks that have arrived and waits for the rest. So only one thread ever touches the mesh.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable

from services.protocol.versions import Version
from services.tensors.chunk_messages import TensorChunk
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Entry
from services.tensors.layout_parts import Piece
from worker.layout_share import LayoutShare
from worker.remote_step import RemoteStep


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

    It copies what arrives to the memory that the compute process reads. An aggregator on this host may overwrite its
    own memory with newer weights meanwhile. Then the rest of the old version is skipped, because the newer one is on
    its way.

    Args:
        step: the step whose parameters the weights are.
        share: the worker's share of the layout, whose pieces arrive; the others take no memory.
        on_new_version: callback, called when the first piece of a version has arrived.

    Attributes:
        version: newest version of which a piece has arrived.
    """

    def __init__(
        self,
        step: RemoteStep,
        share: LayoutShare,
        on_new_version: Callable[[], None],
    ) -> None:
        self._step = step
        self._entries = share.entries
        self._pieces = share.loads
        self._on_new_version = on_new_version
        self._weights: Float32Array = step.weights
        self._arrived: set[int] = set()  # places of pieces
        self.version = Version(0, 0)
        self._overwritten = False
        self._is_new = False  # the process has not been told of the version
        self._next_place = 0  # all pieces before this one have arrived
        self._loaded = 0  # number of entries on the mesh: the first ones

    def has(self, entry: int) -> bool:
        """Return whether the newest version's parameter of a layout entry is on the mesh."""
        return bisect_left(self._entries, entry) < self._loaded

    def load(self, chunk: TensorChunk) -> bool:
        """Put the parameters that a piece completes on the mesh; return whether it was the last of its version."""
        header = chunk.header
        version = Version(header.generation, header.step)
        if version != self.version:
            self.version, self._overwritten, self._loaded, self._next_place = version, False, 0, 0
            self._arrived.clear()
            self._is_new = True
            self._on_new_version()
        self._take(chunk)
        while self._next_place in self._arrived:
            self._next_place += 1
        self._load_complete()
        return self.are_loaded

    def reload(self) -> None:
        """Load all parameters again that have arrived, in a new compute process."""
        self._loaded, self._is_new = 0, True
        self._load_complete()

    @property
    def are_loaded(self) -> bool:
        """Whether all parameters of the newest version are on the mesh."""
        return self._loaded == len(self._entries)

    def _load_complete(self) -> None:
        loaded = self._loaded
        while loaded < len(self._entries) and not self._overwritten:
            if self._places(self._step.layout.entries[self._entries[loaded]]).stop > self._next_place:
                break
            loaded += 1
        if loaded > self._loaded or self._is_new:
            self._step.load(loaded, is_new=self._is_new)
            self._loaded, self._is_new = loaded, False

    def _take(self, chunk: TensorChunk) -> None:
        header = chunk.header
        place = self._pieces.place_of(Piece(header.index, header.offset, header.elements))
        assert place is not None, "the core lets no others through"
        chunk.copy_to(self._own(header.offset, header.elements))
        self._overwritten |= not chunk.intact
        self._arrived.add(place)

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
