"""A shard's own bookkeeping: whose chunks it takes, which weights it has made, what each worker is to be sent. Pure.

What becomes of a payload the aggregator's core decides, elsewhere. This stands where that core stands for a worker's
data stream (`aggregator.data_plane.worker_streams`).
"""

from __future__ import annotations

from dataclasses import dataclass

from protos.tensors_pb2 import WEIGHTS, ChunkHeader, ChunkKind, DType
from services.errors import Refusal
from services.protocol.plan import WireTypes
from services.protocol.versions import Version
from services.tensors.layout import chunk_range
from services.tensors.stripes import Stripe


@dataclass
class DueWeights:
    """What a worker is to be sent.

    Attributes:
        version: of the weights; None: nothing yet.
        limit: how many of the shard's chunks, from its first.
        sent: how many were sent.
    """

    version: Version | None = None
    limit: int = 0
    sent: int = 0


class ShardCore:
    """The bookkeeping under one attendance of an aggregator.

    Args:
        epoch: of the aggregator.
        stripe: the chunks that are this shard's.

    Attributes:
        job: the one whose tensors are held; empty if there are none.
        elements: of its whole layout.
    """

    def __init__(self, epoch: int, stripe: Stripe) -> None:
        self.epoch = epoch
        self.stripe = stripe
        self.job = ""
        self.elements = 0
        self._wire = WireTypes()
        self._version: Version | None = None
        self._made = 0
        self._due: dict[int, DueWeights] = {}

    # ---- what is held ----

    def opened(self, job: str, elements: int, wire: WireTypes) -> None:
        """Tensors of a job are held from now on; no weights of it are made yet."""
        self.job, self.elements, self._wire = job, elements, wire
        self._version, self._made = None, 0

    def dropped(self) -> None:
        """No tensors are held any more."""
        self.opened("", 0, WireTypes())

    def made(self, job: str, version: Version, chunks: int) -> bool:
        """The messages of the first chunks of a version's weights are made; False: of a job that is held no more."""
        if job != self.job:
            return False
        self._version, self._made = version, chunks
        return True

    # ---- what a data stream asks ----

    def check_chunk(self, session: int, header: ChunkHeader) -> Refusal | None:
        """Return why this shard can't take a worker's chunk; None leaves the decision to the aggregator's core."""
        if header.epoch != self.epoch:
            return Refusal(f"its epoch is {header.epoch}, this shard obeys epoch {self.epoch}")
        if header.job != self.job:
            return Refusal(f"its job is {header.job!r}, this shard holds {self.job or 'none'}")
        return None

    def expected_elements(self, job: str) -> int | None:
        """Elements of the whole layout; None: nothing of this job is held."""
        return self.elements or None if job == self.job else None

    def wire_type(self, kind: ChunkKind) -> DType:
        """How chunks of this kind travel."""
        return self._wire.dtype_of(kind)

    def next_weights(self, session: int) -> ChunkHeader | None:
        """The header of the next chunk of weights for a worker, counted as sent; None: nothing for now."""
        due = self._due.get(session)
        if due is None or due.version is None or due.version != self._version:
            return None
        if due.sent >= min(due.limit, self._made):
            return None
        due.sent += 1
        generation, step = due.version
        index = self.stripe.to_global(due.sent - 1)
        start, stop = chunk_range(self.elements, index)
        return ChunkHeader(
            job=self.job,
            epoch=self.epoch,
            generation=generation,
            step=step,
            kind=WEIGHTS,
            index=index,
            offset=start,
            elements=stop - start,
            dtype=self._wire.weights,
        )

    # ---- workers ----

    def attends(self, session: int) -> None:
        """A worker's data stream may come."""
        self._due[session] = DueWeights()

    def left(self, session: int) -> None:
        """A worker is gone."""
        self._due.pop(session, None)

    def send(self, session: int, version: Version, limit: int) -> None:
        """A worker is to be sent the first `limit` of the shard's chunks of a version."""
        due = self._due.get(session)
        if due is None:
            return
        if due.version != version:
            due.version, due.limit, due.sent = version, 0, 0
        due.limit = max(due.limit, limit)
