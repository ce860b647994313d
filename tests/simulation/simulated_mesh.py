"""The mesh of a simulated worker: the pieces of weights that were loaded, each with its version."""

from __future__ import annotations

from collections import deque

from protos.tensors_pb2 import ChunkHeader
from services.protocol.versions import Version
from services.tensors.layout_parts import LayoutParts, Piece
from tests.simulation.job_model import require


class SimulatedMesh:
    """The weights on a worker's mesh.

    Args:
        title: name of the worker's process.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._arrived: deque[tuple[ChunkHeader, int]] = deque()
        self._pieces: list[Piece] = []
        self._weights: dict[int, tuple[Version, int]] = {}  # by the piece's offset
        self._loaded = Version(0, -1)

    def build(self, loads: LayoutParts) -> None:
        """Make room for these pieces, without weights."""
        self._pieces = list(loads)
        self._weights.clear()
        self._loaded = Version(0, -1)

    def clear(self) -> None:
        """Remove the weights."""
        self._weights.clear()
        self._loaded = Version(0, -1)

    def put(self, header: ChunkHeader, weights: int) -> None:
        """Keep weights that have arrived until they are loaded."""
        self._arrived.append((header, weights))

    def load(self) -> list[tuple[str, Version]]:
        """Load what has arrived; return the job and the version each time that all pieces have the same one."""
        complete = []
        while self._arrived:
            header, weights = self._arrived.popleft()
            version = Version(header.generation, header.step)
            self._weights[header.offset] = (version, weights)
            if self._pieces and all(self.version_of(each) == version for each in self._pieces):
                require(version > self._loaded, f"{self._title} loaded {version} after {self._loaded}")
                self._loaded = version
                complete.append((header.job, version))
        return complete

    def version_of(self, piece: Piece) -> Version | None:
        """Return the version of a piece; None if it was not loaded."""
        return self._weights.get(piece.offset, (None, 0))[0]

    def pieces_in(self, parts: LayoutParts) -> list[Piece]:
        """Return the pieces that have elements of these parts, in order."""
        return [
            piece
            for piece in self._pieces
            if any(
                start < piece.offset + piece.elements and piece.offset < stop for start, stop in parts.runs
            )
        ]

    @property
    def pieces(self) -> list[Piece]:
        """All pieces, in order."""
        return self._pieces

    def weights_of(self, piece: Piece) -> int:
        """Return the weights of a piece that was loaded."""
        return self._weights[piece.offset][1]
