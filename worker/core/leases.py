"""The leases that a worker holds, and how much of their sums it may send."""

from __future__ import annotations

from dataclasses import dataclass, field

from protos import cluster_pb2 as pb
from protos.tensors_pb2 import GRADIENT, INITIAL_WEIGHTS, ChunkHeader, Findings
from services.errors import Refusal
from services.protocol.plan import MOST_EVALUATION_BATCHES, WINDOW_CHUNKS
from services.protocol.versions import Version
from services.tensors.layout import CHUNK_ELEMENTS
from worker.core.events import Built

MOST_LEASES = 256
"""Maximum number of leases a worker holds. An aggregator grants a few, and more when other workers die."""
MOST_WINDOWS = 8
"""Maximum number of versions whose send windows are kept. The current step needs one, and the next step another."""


@dataclass
class HeldLease:
    """A lease that this worker has accepted.

    Attributes:
        lease: the aggregator's message.
        ready_from: index in the layout; from it on, the sum's elements are computed.
        begun: whether the device thread has the lease; before that, the first of its weights must arrive.
        findings: findings of its micro-batches; known when chunk 0, the last one to be sent, is computed.
    """

    lease: pb.Lease
    ready_from: int
    begun: bool = False
    findings: Findings = field(default_factory=Findings)

    @property
    def version(self) -> Version:
        """Version of the weights that the lease is computed with."""
        return Version(self.lease.generation, self.lease.step)

    @property
    def needs_weights(self) -> bool:
        """Whether the lease is computed with weights; the lease that makes the initial ones is not."""
        return self.lease.phase != pb.INITIALISE

    @property
    def has_sum(self) -> bool:
        """Whether it makes gradients or weights that the aggregator gets."""
        return self.lease.phase in (pb.TRAIN, pb.INITIALISE)

    def make_header(self, built: Built, epoch: int) -> ChunkHeader:
        """Return what the headers of all pieces of the sum share. Without stages, that of chunk 0 has the findings."""
        lease = self.lease
        kind = GRADIENT if lease.phase == pb.TRAIN else INITIAL_WEIGHTS
        return ChunkHeader(
            job=lease.job,
            epoch=epoch,
            generation=lease.generation,
            step=lease.step,
            lease=lease.lease,
            kind=kind,
            dtype=built.wire.dtype_of(kind),
            findings=self.findings if built.stages is None else None,
        )


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

    def first_element(self, held: HeldLease, chunks: int) -> int:
        """Return the index in the layout from which on a lease's sum may be sent; initial weights have no window.

        Args:
            held: the lease.
            chunks: number of chunks of the job's layout.
        """
        if held.lease.phase == pb.INITIALISE:
            return 0
        return max(0, chunks - self._limits.get(held.version, WINDOW_CHUNKS)) * CHUNK_ELEMENTS
