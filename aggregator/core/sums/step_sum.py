"""One step's sum: who computes which node, what has arrived, what is still missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aggregator.core.leasing.planning import NOTHING_BUSY, plan
from aggregator.core.sums.coverage import Arrival, Coverage
from aggregator.core.verification.opinions import Check
from protos.tensors_pb2 import NonFinite
from services.protocol.plan import MIN_WINDOW_CHUNKS, TOTAL_WINDOW_CHUNKS, WINDOW_CHUNKS
from services.protocol.versions import Version
from services.tensors.reduction_tree import Node


@dataclass
class Assignment:
    """A node and the worker that computes it.

    Attributes:
        node: The part of the reduction tree to compute.
        session: The session of the worker it is planned for; None for an orphan.
        since_seconds: When it was planned or granted, or when its worker had the weights, whichever was last. On the
            monotonic clock.
        lease: The id of its lease; 0 before it is granted.
        computed: Whether the worker has reported it as computed.
    """

    node: Node
    session: int | None
    since_seconds: float
    lease: int = 0
    computed: bool = False


class StepSum:
    """The state of one step until its COMMIT.

    Args:
        version: The weights the step starts from.
        micro_batches: The leaves of the reduction tree.
        chunks: The number of chunks in the layout.
        now: The time, on the monotonic clock.
        window_factor: The factor by which send windows are widened: the number of processes that share the chunks,
            times how many wire gradients fit into a float32 one.
        checked: Micro-batches that a second worker computes too; the sum completes only after their checks.

    Attributes:
        checks: The check of each such micro-batch.
        coverage: What has arrived.
        assignments: Who computes which node, in the order of the nodes.
        window_end: The position in the agreed order that senders must not reach yet.
    """

    def __init__(
        self,
        version: Version,
        micro_batches: int,
        chunks: int,
        now: float,
        window_factor: int = 1,
        checked: Iterable[int] = (),
    ) -> None:
        self.version = version
        self.checks = {each: Check(each) for each in checked}
        self.coverage = Coverage(Node(0, micro_batches), chunks, gated=bool(self.checks))
        self.assignments = [Assignment(self.coverage.root, None, now)]
        self.window_end = min(WINDOW_CHUNKS * window_factor, chunks)
        self._window_factor = window_factor
        self._position = 0
        self._losses: dict[int, float] = {}
        self._non_finite: dict[int, NonFinite] = {}

    # ---- who computes what ----

    def orphans(self) -> list[Assignment]:
        """Return the assignments that have no worker and of which something is missing."""
        return [
            each for each in self.assignments if each.session is None and self.coverage.missing(each.node)
        ]

    def distribute(
        self, speeds: Mapping[int, float], now: float, busy_seconds: Mapping[int, float] = NOTHING_BUSY
    ) -> None:
        """Plan the orphans for these workers.

        Busy workers get nothing now. What a busy worker would finish first is split off and stays an orphan until
        that worker is free.

        Args:
            speeds: Micro-batches per second, by session.
            now: The time, on the monotonic clock.
            busy_seconds: How long a worker still computes other work, by session; idle workers are absent.
        """
        orphans = self.orphans()
        if not orphans or not speeds.keys() - busy_seconds.keys():
            return
        owners = plan([orphan.node for orphan in orphans], speeds, busy_seconds)
        for orphan in orphans:
            pieces = {node: owner for node, owner in owners.items() if orphan.node.contains(node)}
            if pieces.keys() and busy_seconds.keys() >= set(pieces.values()):
                continue  # only busy workers would take it: it stays whole
            self.assignments.remove(orphan)
            self.assignments += [
                Assignment(node, None if owner in busy_seconds else owner, now)
                for node, owner in pieces.items()
            ]
        self.assignments.sort(key=lambda each: each.node)
        if self._position == 0:
            self.window_end = min(self._window_chunks, self.coverage.chunks)

    def sessions(self) -> set[int]:
        """Return the workers that assignments are planned for."""
        return {each.session for each in self.assignments if each.session is not None}

    def of_session(self, session: int) -> list[Assignment]:
        """Return the assignments of a worker."""
        return [each for each in self.assignments if each.session == session]

    def by_lease(self, lease: int) -> Assignment | None:
        """Return the assignment with that lease; None if the lease is void."""
        return next((each for each in self.assignments if lease and each.lease == lease), None)

    def is_busy(self, session: int) -> bool:
        """Return whether a worker has something left to compute."""
        return any(not each.computed for each in self.of_session(session))

    def busy_seconds(self, session: int, speed: float, now: float) -> float:
        """Return how long a worker of that speed presumably still computes its assignments.

        A worker that is two seconds late is expected to need two seconds more.
        """
        unfinished = [each for each in self.of_session(session) if not each.computed]
        if not unfinished:
            return 0.0
        since_seconds = min(each.since_seconds for each in unfinished)
        # Finished assignments that were granted together with these took part of that time.
        together = [each for each in self.of_session(session) if each.since_seconds >= since_seconds]
        return abs(since_seconds + sum(each.node.count for each in together) / speed - now)

    def is_expected(self, micro_batch: int) -> bool:
        """Return whether a worker has yet to compute a micro-batch for the sum."""
        return any(
            not each.computed and (each.session is not None or self.coverage.missing(each.node))
            for each in self.assignments
            if each.node.first <= micro_batch < each.node.stop
        )

    def checked_in(self, node: Node) -> list[int]:
        """Return the micro-batches of a node that are checked."""
        return [each for each in self.checks if node.first <= each < node.stop]

    @property
    def verified(self) -> bool:
        """Whether every check is closed."""
        return all(check.outcome for check in self.checks.values())

    def restart_clock(self, session: int, now: float) -> None:
        """Measure a worker's assignments from now on, since it has just received the weights."""
        for each in self.of_session(session):
            each.since_seconds = now

    def abandon(self, session: int, now: float) -> None:
        """Make orphans of all assignments of a worker that is gone."""
        for each in self.of_session(session):
            self.release(each, now)

    def release(self, assignment: Assignment, now: float) -> None:
        """Make an assignment an orphan; its lease, if it has one, becomes void."""
        assignment.session, assignment.lease, assignment.computed = None, 0, False
        assignment.since_seconds = now

    # ---- what has arrived ----

    def arrive(self, assignment: Assignment, chunk: int, losses: Iterable[float]) -> Arrival:
        """Count a chunk of an assignment's node; chunk 0 carries the losses of its micro-batches."""
        losses = list(losses)
        if len(losses) == assignment.node.count:
            self._losses.update(enumerate(losses, assignment.node.first))
        return self.coverage.add(assignment.node, chunk)

    def blame(self, assignment: Assignment, worker: str, found: Iterable[NonFinite]) -> None:
        """Record the micro-batches of an assignment whose gradients its worker found not finite."""
        node = assignment.node
        for each in found:
            if node.first <= each.micro_batch < node.stop:
                named = NonFinite(micro_batch=each.micro_batch, parameter=each.parameter, worker=worker)
                self._non_finite[each.micro_batch] = named

    @property
    def non_finite(self) -> list[NonFinite]:
        """The micro-batches known to have gradients that are not finite, in their order."""
        return [self._non_finite[index] for index in sorted(self._non_finite)]

    def reopen(self, chunks: Iterable[int]) -> list[int]:
        """Count chunks as missing that the optimizer lacks; return those that must be sent again.

        The send window restarts at the first chunk that is not finished.
        """
        reopened = [chunk for chunk in chunks if self.coverage.reopen(chunk)]
        if reopened:
            self._position = self.coverage.done_in_order(0)
            self.window_end = min(self._position + self._window_chunks, self.coverage.chunks)
        return reopened

    def widen(self) -> bool:
        """Move the window past the finished chunks; return whether it moved far enough to tell the senders."""
        self._position = self.coverage.done_in_order(self._position)
        window = self._window_chunks
        end = min(self._position + window, self.coverage.chunks)
        least = min(window // 2, self.coverage.chunks - self.window_end)
        if end <= self.window_end or end - self.window_end < least:
            return False
        self.window_end = end
        return True

    @property
    def _window_chunks(self) -> int:
        """Number of chunks past the finished ones that each lease may send, over all shards."""
        each = max(MIN_WINDOW_CHUNKS, min(WINDOW_CHUNKS, TOTAL_WINDOW_CHUNKS // len(self.assignments)))
        return each * self._window_factor

    @property
    def loss(self) -> float | None:
        """Mean loss of the step's micro-batches, added in their order; None if some are unknown."""
        count = self.coverage.root.count
        if len(self._losses) < count:
            return None
        return sum_losses(self._losses[index] for index in range(count)) / count


def sum_losses(losses: Iterable[float]) -> float:
    """Return the exact sum of reported losses, rounded once; NaN if there is none, such as inf minus inf."""
    try:
        return math.fsum(losses)
    except (OverflowError, ValueError):
        return math.nan
