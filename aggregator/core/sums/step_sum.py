"""One step's sum: who computes which node, what has arrived, what is still missing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aggregator.core.leasing.planning import NOBODY_BUSY, plan
from aggregator.core.sums.coverage import Arrival, Coverage
from aggregator.core.sums.losses import total
from aggregator.core.verification.opinions import Check
from protos.tensors_pb2 import NonFinite
from services.protocol.plan import MIN_WINDOW_CHUNKS, TOTAL_WINDOW_CHUNKS, WINDOW_CHUNKS
from services.protocol.versions import Version
from services.tensors.reduction_tree import Node


@dataclass
class Assignment:
    """A node and who computes it.

    Attributes:
        node: of the reduction tree.
        session: of the worker it is planned for; None: nobody's.
        lease: its id once granted, 0 before.
        since_seconds: when it was planned or granted, or its worker had the weights, whichever was last; monotonic.
        computed: whether the worker said that it has computed it.
    """

    node: Node
    session: int | None
    since_seconds: float
    lease: int = 0
    computed: bool = False


class StepSum:
    """The state of one step until its COMMIT."""

    def __init__(
        self,
        version: Version,
        micro_batches: int,
        chunks: int,
        now: float,
        room: int = 1,
        checked: Iterable[int] = (),
    ) -> None:
        """Windows are `room` times as many chunks: of processes that they go through, and by how much they are shorter
        than in float32. The sum is not complete before the micro-batches `checked` are."""
        self._room = room
        self.version = version
        self.checks = {each: Check(each) for each in checked}
        self.coverage = Coverage(Node(0, micro_batches), chunks, gated=bool(self.checks))
        self.assignments = [Assignment(self.coverage.root, None, now)]
        self.limit = min(WINDOW_CHUNKS * room, chunks)
        self._position = 0
        self._losses: dict[int, float] = {}
        self._non_finite: dict[int, NonFinite] = {}

    # ---- who computes what ----

    def orphans(self) -> list[Assignment]:
        """Assignments that nobody computes and of which something is missing."""
        return [
            each for each in self.assignments if each.session is None and self.coverage.missing(each.node)
        ]

    def distribute(
        self, speeds: Mapping[int, float], now: float, busy_seconds: Mapping[int, float] = NOBODY_BUSY
    ) -> None:
        """Plan the orphans for these workers (micro-batches per second by session).

        Whoever has other work to do first, for so many seconds by session, is given nothing now: what it would finish
        before the others waits for it, split off from what they get.
        """
        orphans = self.orphans()
        if not orphans or not speeds.keys() - busy_seconds.keys():
            return
        owners = plan([orphan.node for orphan in orphans], speeds, busy_seconds)
        for orphan in orphans:
            parts = {node: owner for node, owner in owners.items() if orphan.node.contains(node)}
            if parts.keys() and busy_seconds.keys() >= set(parts.values()):
                continue  # it stays whole
            self.assignments.remove(orphan)
            self.assignments += [
                Assignment(node, None if owner in busy_seconds else owner, now)
                for node, owner in parts.items()
            ]
        self.assignments.sort(key=lambda each: each.node)
        if self._position == 0:
            self.limit = min(self._window_chunks, self.coverage.chunks)

    def sessions(self) -> set[int]:
        """The workers that assignments are planned for."""
        return {each.session for each in self.assignments if each.session is not None}

    def of_session(self, session: int) -> list[Assignment]:
        """Assignments of a worker."""
        return [each for each in self.assignments if each.session == session]

    def by_lease(self, lease: int) -> Assignment | None:
        """The assignment granted under that lease, if it still stands."""
        return next((each for each in self.assignments if lease and each.lease == lease), None)

    def busy(self, session: int) -> bool:
        """Whether a worker has something left to compute."""
        return any(not each.computed for each in self.of_session(session))

    def busy_seconds(self, session: int, speed: float, now: float) -> float:
        """How long a worker of that speed presumably still computes what it has.

        Whoever takes longer than its speed lets expect is thought to take as long again as it is late by now.
        """
        owed = [each for each in self.of_session(session) if not each.computed]
        if not owed:
            return 0.0
        since_seconds = min(each.since_seconds for each in owed)
        # What it was given with them and has computed already is in that time, too.
        together = [each for each in self.of_session(session) if each.since_seconds >= since_seconds]
        return abs(since_seconds + sum(each.node.count for each in together) / speed - now)

    def owes(self, micro_batch: int) -> bool:
        """Whether somebody is to compute a micro-batch for the sum."""
        return any(
            not each.computed and (each.session is not None or self.coverage.missing(each.node))
            for each in self.assignments
            if each.node.first <= micro_batch < each.node.stop
        )

    def checked_in(self, node: Node) -> list[int]:
        """The micro-batches of a node that are checked."""
        return [each for each in self.checks if node.first <= each < node.stop]

    @property
    def verified(self) -> bool:
        """Whether no check is open."""
        return all(check.outcome for check in self.checks.values())

    def begun(self, session: int, now: float) -> None:
        """A worker has the weights: only now does it compute in earnest."""
        for each in self.of_session(session):
            each.since_seconds = now

    def abandon(self, session: int, now: float) -> None:
        """A worker is gone: what it had is nobody's."""
        for each in self.of_session(session):
            self.release(each, now)

    def release(self, assignment: Assignment, now: float) -> None:
        """Make an assignment nobody's; its lease, if any, is void."""
        assignment.session, assignment.lease, assignment.computed = None, 0, False
        assignment.since_seconds = now

    # ---- what has arrived ----

    def arrive(self, assignment: Assignment, chunk: int, losses: Iterable[float]) -> Arrival:
        """A chunk of an assignment's node came in, with the node's losses if it is chunk 0."""
        losses = list(losses)
        if len(losses) == assignment.node.count:
            self._losses.update(enumerate(losses, assignment.node.first))
        return self.coverage.add(assignment.node, chunk)

    def blame(self, assignment: Assignment, worker: str, found: Iterable[NonFinite]) -> None:
        """A worker found gradients of an assignment's micro-batches that are not finite."""
        node = assignment.node
        for each in found:
            if node.first <= each.micro_batch < node.stop:
                named = NonFinite(micro_batch=each.micro_batch, parameter=each.parameter, worker=worker)
                self._non_finite[each.micro_batch] = named

    @property
    def non_finite(self) -> list[NonFinite]:
        """Micro-batches whose gradients are not finite, as far as chunk 0 of their nodes has come, in their order."""
        return [self._non_finite[index] for index in sorted(self._non_finite)]

    def reopen(self, chunks: Iterable[int]) -> list[int]:
        """The optimizer lacks these chunks; those that had been passed on: they are sent again, in a new window."""
        reopened = [chunk for chunk in chunks if self.coverage.reopen(chunk)]
        if reopened:
            self._position = self.coverage.done_in_order(0)
            self.limit = min(self._position + self._window_chunks, self.coverage.chunks)
        return reopened

    def widen(self) -> bool:
        """Move the senders' limit after the finished chunks; whether it moved enough to be worth a message."""
        self._position = self.coverage.done_in_order(self._position)
        window = self._window_chunks
        limit = min(self._position + window, self.coverage.chunks)
        if limit <= self.limit or limit - self.limit < min(window // 2, self.coverage.chunks - self.limit):
            return False
        self.limit = limit
        return True

    @property
    def _window_chunks(self) -> int:
        """How far ahead of the finished chunks each lease may send, over all lanes."""
        each = max(MIN_WINDOW_CHUNKS, min(WINDOW_CHUNKS, TOTAL_WINDOW_CHUNKS // len(self.assignments)))
        return each * self._room

    @property
    def loss(self) -> float | None:
        """Mean loss of the step's micro-batches, added in their order; None if not all are known."""
        count = self.coverage.root.count
        if len(self._losses) < count:
            return None
        return total(self._losses[index] for index in range(count)) / count
