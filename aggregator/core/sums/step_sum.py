"""One step's sum: who computes which node, what has arrived, what is still missing."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aggregator.core.leasing.planning import NOTHING_BUSY, plan
from aggregator.core.sums.coverage import Arrival, Coverage
from aggregator.core.verification.step_checks import StepChecks
from protos.tensors_pb2 import Findings, NonFinite
from services.printable import printable
from services.protocol.non_finite import MAX_PARAMETER_NAME_CHARACTERS, MAX_REPORTED_MICRO_BATCHES
from services.protocol.plan import MIN_WINDOW_CHUNKS, TOTAL_WINDOW_CHUNKS, WINDOW_CHUNKS
from services.protocol.versions import Version
from services.tensors.chunk_set import ChunkSet
from services.tensors.reduction_tree import Node


@dataclass
class Assignment:
    """A node and the worker that computes it.

    Attributes:
        node: the part of the reduction tree to compute.
        session: the session of the worker it is planned for; None for an orphan.
        since_seconds: when it was planned or granted, or when its worker had the weights, whichever was last. On the
            monotonic clock.
        lease: the id of its lease; 0 before it is granted.
        computed: whether the worker has reported it as computed.
        count: number of tokens that count in its losses, as its findings say.
        owed_chunk: the chunk that the step waited for when this was looked at last, if its worker has computed it
            and not sent that; else None.
        owed_since_seconds: since when.
    """

    node: Node
    session: int | None
    since_seconds: float
    lease: int = 0
    computed: bool = False
    count: int = 0
    owed_chunk: int | None = None
    owed_since_seconds: float = 0.0


class StepSum:
    """The state of one step until its COMMIT.

    Args:
        version: the weights the step starts from.
        micro_batches: the leaves of the reduction tree.
        chunks: the number of chunks in the layout.
        now: the time, on the monotonic clock.
        window_factor: the factor by which send windows are widened: the number of processes that share the chunks,
            times how many wire gradients fit into a float32 one.
        checked: micro-batches that a second worker computes too; the sum completes only after their checks.

    Attributes:
        checks: the checks of these micro-batches.
        coverage: what has arrived.
        assignments: who computes which node, in the order of the nodes.
        window_end: the position in the agreed order that senders must not reach yet.
        begun_seconds: when it began, on the monotonic clock.
        last_session: the session whose chunk arrived last; 0 before there is one.
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
        self.begun_seconds = now
        self.last_session = 0
        self.checks = StepChecks(checked)
        self.coverage = Coverage(Node(0, micro_batches), chunks, gated=bool(self.checks))
        self.assignments = [Assignment(self.coverage.root, None, now)]
        self.window_end = min(WINDOW_CHUNKS * window_factor, chunks)
        self._window_factor = window_factor
        self._position = 0
        self._by_lease: dict[int, Assignment] = {}
        self._losses: dict[int, float] = {}
        self._counts: dict[Node, int] = {}  # of the sums of chunk 0
        self._non_finite: dict[int, NonFinite] = {}

    # ---- who computes what ----

    def orphans(self) -> list[Assignment]:
        """Return the assignments that have no worker and of which something is missing."""
        return [each for each in self.assignments if each.session is None and self.coverage.misses(each.node)]

    def distribute(
        self, speeds: Mapping[int, float], now: float, busy_seconds: Mapping[int, float] = NOTHING_BUSY
    ) -> None:
        """Plan the orphans for these workers.

        Busy workers get nothing now. What a busy worker would finish first is split off and stays an orphan until
        that worker is free.

        Args:
            speeds: micro-batches per second, by session.
            now: the time, on the monotonic clock.
            busy_seconds: how long a worker still computes other work, by session; idle workers are absent.
        """
        orphans = self.orphans()
        if not orphans or not speeds.keys() - busy_seconds.keys():
            return
        owners = plan([orphan.node for orphan in orphans], speeds, busy_seconds)
        pieces = sorted(owners)
        planned = [each for each in self.assignments if each.session is not None]
        for orphan in (each for each in self.assignments if each.session is None):
            first = bisect_left(pieces, orphan.node.first, key=lambda node: node.first)
            last = bisect_left(pieces, orphan.node.stop, key=lambda node: node.first)
            within = pieces[first:last]
            if all(owners[node] in busy_seconds for node in within):
                planned.append(orphan)  # only busy workers would take it, or nothing of it is missing
                continue
            planned += [
                Assignment(node, None if owners[node] in busy_seconds else owners[node], now)
                for node in within
            ]
        self.assignments = sorted(planned, key=lambda each: each.node)
        if self._position == 0:
            self.window_end = min(self._window_chunks, self.coverage.chunks)

    def grant(self, assignment: Assignment, lease: int, now: float) -> None:
        """Record that an assignment was leased to its worker."""
        self._by_lease.pop(assignment.lease, None)
        assignment.lease, assignment.since_seconds = lease, now
        self._by_lease[lease] = assignment
        if self.checks.expect(assignment.node):
            self.coverage.gated = True

    def sessions(self) -> set[int]:
        """Return the workers that assignments are planned for."""
        return {each.session for each in self.assignments if each.session is not None}

    def of_session(self, session: int) -> list[Assignment]:
        """Return the assignments of a worker."""
        return [each for each in self.assignments if each.session == session]

    def by_lease(self, lease: int) -> Assignment | None:
        """Return the assignment with that lease; None if the lease is void."""
        assignment = self._by_lease.get(lease)
        return assignment if assignment is not None and assignment.lease == lease else None

    def is_busy(self, session: int) -> bool:
        """Return whether a worker has something left to compute."""
        return any(not each.computed for each in self.of_session(session))

    def busy_sessions(self) -> set[int]:
        """Return the workers that have something left to compute."""
        return {each.session for each in self.assignments if each.session is not None and not each.computed}

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
        place = bisect_right(self.assignments, micro_batch, key=lambda each: each.node.first) - 1
        each = self.assignments[place]
        return not each.computed and (each.session is not None or self.coverage.misses(each.node))

    def note_owed(self, assignment: Assignment, now: float) -> bool:
        """Record whether the worker of a computed assignment owes the step's next chunk; return whether it does."""
        chunk = self.next_chunk
        if chunk is not None and self.coverage.covers(assignment.node, chunk):
            chunk = None
        if chunk != assignment.owed_chunk:
            assignment.owed_chunk, assignment.owed_since_seconds = chunk, now
        return chunk is not None

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
        self._by_lease.pop(assignment.lease, None)
        assignment.session, assignment.lease, assignment.computed = None, 0, False
        assignment.owed_chunk = None
        assignment.since_seconds = now

    # ---- what has arrived ----

    @property
    def next_chunk(self) -> int | None:
        """The next chunk to finish in the agreed order, as far as `widen` knows; None if there is none."""
        chunk = self.coverage.chunks - 1 - self._position
        return chunk if chunk >= 0 and not self.coverage.complete else None

    def arrive(self, assignment: Assignment, chunk: int) -> Arrival:
        """Count a chunk of an assignment's node; with chunk 0, add up what counts as its sums are added."""
        arrival = self.coverage.add(assignment.node, chunk)
        if not arrival.duplicate:
            self.last_session = assignment.session or 0
        if chunk == 0 and not arrival.duplicate:
            for superseded in arrival.superseded:
                self._counts.pop(superseded, None)
            self._counts[assignment.node] = assignment.count
            for left, right, parent in arrival.merges:
                self._counts[parent] = self._counts.pop(left) + self._counts.pop(right)
        return arrival

    def note_findings(self, assignment: Assignment, worker: str, findings: Findings) -> None:
        """Record what a worker has found of an assignment's micro-batches: losses, if there is one for each."""
        node = assignment.node
        if len(findings.losses) == node.count:
            self._losses.update(enumerate(findings.losses, node.first))
        assignment.count = findings.count or assignment.count
        for each in findings.non_finite:
            if node.first <= each.micro_batch < node.stop:
                parameter = printable(each.parameter, MAX_PARAMETER_NAME_CHARACTERS)
                named = NonFinite(micro_batch=each.micro_batch, parameter=parameter, worker=worker)
                self._non_finite[each.micro_batch] = named

    @property
    def non_finite(self) -> list[NonFinite]:
        """The first of the micro-batches known to have gradients that are not finite, in their order."""
        return [self._non_finite[index] for index in sorted(self._non_finite)[:MAX_REPORTED_MICRO_BATCHES]]

    @property
    def findings(self) -> Findings:
        """What is found of the whole step, once chunk 0 of its sum is finished; losses stay here."""
        return Findings(non_finite=self.non_finite, count=self._counts[self.coverage.root])

    def reopen(self, chunks: ChunkSet) -> ChunkSet:
        """Count chunks as missing that the optimizer lacks; return those that must be sent again.

        The send window restarts at the first chunk that is not finished.
        """
        reopened = self.coverage.reopen(chunks)
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
