"""Chunks on their way through the aggregator: what to do with each payload. Pure.

Up: a node's chunk is kept, merged with its sibling's, and passed on at the root. Down: the newest weights are kept,
and every worker is sent them in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aggregator.core.events import Drop, Forward, Keep, Merge, Outbox, StoreWeights
from aggregator.core.membership.members import Member
from aggregator.core.sums.step_sum import Assignment, StepSum
from protos.tensors_pb2 import FLOAT32, GRADIENT, WEIGHTS, ChunkHeader
from services.protocol.plan import WireTypes
from services.protocol.versions import Version
from services.tensors.layout import chunk_range
from services.tensors.reduction_tree import Node


@dataclass
class WeightStore:
    """Which chunks of the newest weights the aggregator holds."""

    version: Version | None = None
    elements: int = 0
    prefix: int = 0
    _chunks: set[int] = field(default_factory=set)

    def begin(self, version: Version | None, elements: int) -> None:
        """Expect the chunks of a version, unless they are expected already."""
        if (self.version, self.elements) != (version, elements):
            self.version, self.elements, self.prefix = version, elements, 0
            self._chunks.clear()

    def add(self, chunk: int) -> bool:
        """Count a chunk; False if it was here already."""
        if chunk in self._chunks:
            return False
        self._chunks.add(chunk)
        while self.prefix in self._chunks:
            self.prefix += 1
        return True

    def next_for(self, member: Member) -> tuple[Version, int] | None:
        """The chunk that a worker is to be sent next, counted as sent; None: nothing for now."""
        if self.version is None or not member.able or member.holds == self.version:
            return None
        if member.sent_version != self.version:
            member.sent_version, member.sent_chunks = self.version, 0
        if member.sent_chunks >= self.prefix:
            return None
        member.sent_chunks += 1
        return self.version, member.sent_chunks - 1


class ChunkRouter:
    """Turns arriving chunks into effects on their payloads."""

    def __init__(self, job: str, epoch: int, wire: WireTypes, out: Outbox) -> None:
        self.job = job
        self.epoch = epoch
        self.wire = wire
        self.weights = WeightStore()
        self._out = out

    def header(self, version: Version, chunk: int, elements: int, kind: int) -> ChunkHeader:
        """The header under which a chunk is sent on; the sender adds incarnation and checksum."""
        start, stop = chunk_range(elements, chunk)
        return ChunkHeader(
            job=self.job,
            epoch=self.epoch,
            generation=version.generation,
            step=version.step,
            kind=kind,  # type: ignore[arg-type]  # an enum value, which protoc's stubs type more narrowly
            index=chunk,
            offset=start,
            elements=stop - start,
            # A finished sum is not rounded: what the optimizer stages is the same in 2 and 3 tiers.
            dtype=self.wire.weights if kind == WEIGHTS else FLOAT32,
        )

    def gradient(self, step_sum: StepSum, assignment: Assignment, header: ChunkHeader, elements: int) -> None:
        """A chunk of an assignment's node."""
        chunk, node = header.index, assignment.node
        arrival = step_sum.arrive(assignment, chunk, header.losses)
        if arrival.duplicate:
            return
        for superseded in arrival.superseded:
            self._out.put(Drop(chunk, superseded))
        self._out.put(Keep(chunk, node))
        for left, right, parent in arrival.merges:
            self._out.put(Merge(chunk, left, right, parent))
        if arrival.done:
            self._finished(step_sum, chunk, elements)

    def open_gate(self, step_sum: StepSum, elements: int) -> None:
        """All checks of a step are closed: its sum may be complete."""
        held_back = step_sum.coverage.open_gate()
        if held_back is not None:
            self._finished(step_sum, held_back, elements)

    def _finished(self, step_sum: StepSum, chunk: int, elements: int) -> None:
        onward = self.header(step_sum.version, chunk, elements, GRADIENT)
        if chunk == 0:
            onward.non_finite.extend(step_sum.non_finite)
        self._out.put(Forward(onward, step_sum.coverage.root))

    def initial(self, header: ChunkHeader) -> None:
        """A chunk of initial weights: straight on to the optimizer."""
        onward = ChunkHeader()
        onward.CopyFrom(header)
        onward.epoch, onward.lease = self.epoch, 0
        root = Node(0, 1)
        self._out.put(Keep(header.index, root))
        self._out.put(Forward(onward, root))

    def store(self, header: ChunkHeader) -> None:
        """A chunk of the newest weights."""
        if self.weights.add(header.index):
            self._out.put(StoreWeights(header, self.weights.elements))

    def next_weights(self, member: Member) -> ChunkHeader | None:
        """The header of the chunk that a worker is to be sent next."""
        following = self.weights.next_for(member)
        if following is None:
            return None
        return self.header(*following, self.weights.elements, WEIGHTS)
