"""Pieces of chunks that have arrived in a simulated plane: each run is reported once, and waits for decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plane.messages import extend
from protos import plane_pb2 as plane
from protos.cluster_pb2 import LayoutPart
from protos.tensors_pb2 import ChunkHeader
from tests.simulation.process import Process

TURN_SECONDS = 0.004
"""Longest time for which a report waits for pieces that continue its run."""


class Arrivals:
    """The pieces that wait for a decision.

    Args:
        process: the plane's process.
        report: takes each report.

    Attributes:
        untold: reports that wait for pieces which continue their runs.
    """

    def __init__(self, process: Process, report: Callable[[plane.ArrivedPieces], None]) -> None:
        self._process = process
        self._report = report
        self._pieces: dict[int, tuple[ChunkHeader, Any]] = {}
        self._last = 0
        self.untold: list[plane.ArrivedPieces] = []

    def add(self, session: int, header: ChunkHeader, payload: Any) -> None:
        """Take a piece from a worker."""
        self._last += 1
        self._pieces[self._last] = header, payload
        part = LayoutPart(offset=header.offset, elements=header.elements)
        arrived = plane.ArrivedPieces(session=session, arrival=self._last, header=header, pieces=[part])
        if not self.untold:
            self._process.later(self._process.cluster.rng.random() * TURN_SECONDS, self.tell)
        if not (self.untold and extend(self.untold[-1], arrived)):
            self.untold.append(arrived)

    def tell(self) -> None:
        """Report what has arrived."""
        waiting, self.untold = self.untold, []
        for arrived in waiting:
            self._process.cluster.injected["runs of pieces"] += len(arrived.pieces) > 1
            self._report(arrived)

    def __len__(self) -> int:
        """Return the number of pieces on which there is no decision."""
        return len(self._pieces)

    def pop(self, arrival: int) -> tuple[ChunkHeader, Any]:
        """Return header and content of a piece on which there is a decision."""
        return self._pieces.pop(arrival)
