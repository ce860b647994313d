"""The weights in a simulated plane, and who gets which of them: the plane's real bookkeeping over symbolic payloads."""

from __future__ import annotations

from typing import Any

from plane.bookkeeping import PlaneCore
from protos import plane_pb2 as plane
from protos.tensors_pb2 import ChunkHeader
from services.protocol.plan import WireTypes
from services.protocol.versions import Version
from services.tensors.layout_parts import LayoutParts, parse_parts
from services.tensors.stripes import Stripe
from tests.simulation.job_model import SimulationFailed


class SimulatedPlane:
    """The newest weights of a plane in an aggregator's process.

    Attributes:
        core: the plane's bookkeeping.
    """

    def __init__(self, epoch: int) -> None:
        self.core = PlaneCore(epoch, Stripe())
        self._weights: dict[tuple[str, int], tuple[Version, Any]] = {}  # by job and chunk

    def carry_out(self, order: plane.PassJob | plane.SendVersion) -> None:
        """Carry out an order about the weights of a job."""
        if isinstance(order, plane.SendVersion):
            send_version(self.core, order)
        elif order.elements:
            self.core.open_job(order.job, order.elements, WireTypes(), sends_pieces=order.pieces)
        else:
            self.drop_job(order.job)

    def drop_job(self, job: str) -> None:
        """Forget a job and its weights."""
        self.core.drop_job(job)
        self._weights = {place: kept for place, kept in self._weights.items() if place[0] != job}

    def keep(self, header: ChunkHeader, payload: Any) -> None:
        """Keep a chunk of the newest weights."""
        version = Version(header.generation, header.step)
        self._weights[header.job, header.index] = version, payload
        self.core.weights_ready(header.job, version, header.index + 1)

    def next_weights(self, session: int) -> tuple[ChunkHeader, Any] | None:
        """Return the next chunk of weights for a worker, or a piece of one; None if there is none now."""
        header = self.core.next_weights(session)
        if header is None:
            return None
        version, payload = self._weights.get((header.job, header.index), (None, None))
        if version != (header.generation, header.step):
            raise SimulationFailed(f"weights of {version} are kept where they are to be sent as {header}")
        return header, payload


def send_version(core: PlaneCore, order: plane.SendVersion) -> None:
    """Have a plane send a worker the weights of a version."""
    parts = parse_parts(order.parts, 1 << 40) if order.parts else None
    assert parts is None or isinstance(parts, LayoutParts)
    core.send_version(order.session, order.job, Version(order.generation, order.step), parts)
