"""The leases that a worker holds, and which pieces of their sums it may send: chunks, without stages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from protos import cluster_pb2 as pb
from protos.tensors_pb2 import GRADIENT, INITIAL_WEIGHTS, ChunkHeader, Findings
from services.errors import Refusal
from services.protocol.plan import MOST_EVALUATION_BATCHES, WINDOW_CHUNKS
from services.protocol.versions import Version
from services.tensors.chunk_ranges import from_ranges
from services.tensors.layout import chunk_count
from services.tensors.layout_parts import LayoutParts
from services.tensors.stripes import Stripe
from worker.core.events import Built

MOST_LEASES = 256
"""Maximum number of leases a worker holds. An aggregator grants a few, and more when other workers die."""
MOST_WINDOWS = 8
"""Maximum number of versions whose send windows are kept. The current step needs one, and the next step another."""


@dataclass
class HeldLease:
    """A lease that this worker has accepted, and the pieces of its sum that are still to be sent.

    Attributes:
        lease: the aggregator's message.
        sends: the pieces of the layout that this worker sends.
        queue: places of the pieces to send, in the order that all workers agree on.
        ready_from: pieces from this place to the last are computed.
        begun: whether the device thread has the lease; before that, the first of its weights must arrive.
        findings: findings of its micro-batches; known when chunk 0, the last one to be sent, is computed.
    """

    lease: pb.Lease
    sends: LayoutParts
    queue: list[int]
    ready_from: int
    begun: bool = False
    findings: Findings = field(default_factory=Findings)

    @classmethod
    def accept(cls, lease: pb.Lease, built: Built) -> HeldLease:
        """Return a lease that has not begun.

        Args:
            lease: the aggregator's message. Without `lease.chunks`, a TRAIN lease sends its whole sum.
            built: the job.
        """
        sends = built.sends
        queue: list[int] = []
        if lease.phase == pb.TRAIN:
            wanted = list(from_ranges(lease.chunks, chunk_count(built.elements)))
            queue = sorted(sends.places(wanted) if lease.chunks else range(len(sends)), reverse=True)
        return cls(lease, sends, queue, len(sends))

    @property
    def version(self) -> Version:
        """Version of the weights that the lease is computed with."""
        return Version(self.lease.generation, self.lease.step)

    @property
    def needs_weights(self) -> bool:
        """Whether the lease is computed with weights; the lease that makes the initial ones is not."""
        return self.lease.phase != pb.INITIALISE

    def queue_again(self, chunks: Collection[int]) -> None:
        """Queue chunks that the aggregator misses: gradients last chunk first, initial weights first chunk first."""
        self.queue = sorted({*self.queue, *self.sends.places(chunks)}, reverse=self.lease.phase == pb.TRAIN)

    def make_header(self, place: int, built: Built, epoch: int) -> ChunkHeader:
        """Return the header of a piece of the sum. Without stages, that of chunk 0 carries the findings."""
        lease, piece = self.lease, self.sends[place]
        kind = GRADIENT if lease.phase == pb.TRAIN else INITIAL_WEIGHTS
        header = ChunkHeader(
            job=lease.job,
            epoch=epoch,
            generation=lease.generation,
            step=lease.step,
            lease=lease.lease,
            kind=kind,
            index=piece.chunk,
            offset=piece.offset,
            elements=piece.elements,
            dtype=built.wire.dtype_of(kind),
        )
        if piece.chunk == 0 and built.stages is None:
            header.findings.CopyFrom(self.findings)
        return header


def check_work(lease: pb.Lease, built: Built) -> Refusal | None:
    """Return why a lease asks for more work than the job has; None if it does not. Its sums take memory by its size."""
    batches = lease.phase == pb.EVALUATE
    most = built.micro_batches
    if batches:  # stages between the first and the last, which read no data, may not know the job's number
        most = built.evaluation_batches or (MOST_EVALUATION_BATCHES if built.stages is not None else 0)
    beyond = max((lease.first + lease.count, *(each + 1 for each in lease.checksums)))
    if lease.phase == pb.INITIALISE or beyond <= most:
        return None
    unit = "held-out batches" if batches else "micro-batches"
    return Refusal(f"lease {lease.lease} asks for {unit} up to {beyond}, expected at most the job's {most}")


class SendWindows:
    """Limits on the chunks that may be sent ahead of the aggregator's finished ones, by weight version.

    Chunks are sent last first, so a window of n covers the last n chunks of the layout.
    """

    def __init__(self) -> None:
        self._limits: dict[Version, int] = {}

    def __len__(self) -> int:
        return len(self._limits)

    def set(self, version: Version, limit: int) -> None:
        """Record the window of a version; with too many of them, the oldest version's is forgotten."""
        self._limits[version] = limit
        if len(self._limits) > MOST_WINDOWS:
            del self._limits[min(self._limits)]

    def forget_before(self, version: Version) -> None:
        """Forget the windows of older versions."""
        self._limits = {each: limit for each, limit in self._limits.items() if each >= version}

    def clear(self) -> None:
        """Forget all windows."""
        self._limits.clear()

    def take_place(self, held: HeldLease, stripe: Stripe, chunks: int) -> int | None:
        """Remove the next piece that may be sent from a lease's queue and return its place; None if it must wait.

        Args:
            held: the lease.
            stripe: the chunks that the asking data stream sends.
            chunks: number of chunks of the job's layout.
        """
        sends = held.sends
        position = next(
            (at for at, each in enumerate(held.queue) if stripe.contains(sends[each].chunk)), None
        )
        if position is None or not self.may_send(held, held.queue[position], chunks):
            return None
        return held.queue.pop(position)

    def may_send(self, held: HeldLease, place: int, chunks: int) -> bool:
        """Return whether a piece is computed, and inside the window if it is a gradient's."""
        if place < held.ready_from:
            return False
        if held.lease.phase == pb.INITIALISE:
            return True
        return chunks - 1 - held.sends[place].chunk < self._limits.get(held.version, WINDOW_CHUNKS)
