"""Rows as the holders of a job's leases: reports of a row's workers become one report of the row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aggregator.core.job_report import JobReport
from aggregator.core.leasing.lease_book import LeaseBook
from aggregator.core.membership.job_members import JobMembers
from aggregator.core.membership.members import Member
from aggregator.core.rows.built_stages import NOTHING, BuiltStages
from aggregator.core.rows.former import RowFormer
from aggregator.core.rows.row_table import Row, RowLease, RowTable
from aggregator.core.sums.chunk_router import ChunkRouter
from aggregator.core.verification.answers import Answers, collect_answers
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import GRADIENT, ChunkHeader
from services.errors import Refusal
from services.pipeline.split import StageRun
from services.protocol.plan import JobPlan
from services.protocol.versions import Version
from services.tensors.layout_parts import LayoutParts
from services.timeouts import Timeouts


class JobRows:
    """The rows of one job.

    Args:
        plan: the job's stages, and how many workers it counts and needs.
        table: the rows; none yet.
        workers: the connected workers, by session.
        job_members: has workers enter the job, and build their stages.
        lease_book: the leases of the rows.
        router: keeps pieces of chunks, and puts them together.
        report: the job's record and log.
        timeouts: the cluster's timeouts.
    """

    def __init__(
        self,
        plan: JobPlan,
        table: RowTable,
        workers: Mapping[int, Member],
        job_members: JobMembers,
        lease_book: LeaseBook,
        router: ChunkRouter,
        report: JobReport,
        *,
        timeouts: Timeouts,
    ) -> None:
        self._table = table
        self._workers = workers
        self._job_members = job_members
        self._lease_book = lease_book
        self._router = router
        self._built = BuiltStages()
        self._former = RowFormer(
            stages=plan.stages,
            pipelines=plan.pipelines,
            min_workers=plan.min_workers,
            table=table,
            built=self._built,
            workers=workers,
            job_members=job_members,
            lease_book=lease_book,
            report=report,
            timeouts=timeouts,
        )

    # ---- workers ----

    def join(self, members: Iterable[Member], now: float) -> None:
        """Take workers into the job, and give them stages."""
        for member in members:
            self._built.forget(member.session)  # it may have been told before, and is told again
            self._job_members.enter(member)
        self._former.settle(now)

    def settle(self, now: float) -> None:
        """Form the rows that the workers allow, and try spares in rows that take too long."""
        self._former.settle(now)
        self._former.replace_late(self._router.weights.version, now)

    def release(self, member: Member, now: float) -> None:
        """Form a row again without a worker, which voids the row's leases."""
        self._former.settle(now)

    def find(self, member: Member) -> Member | None:
        """Return the row of a worker; None if it is a spare."""
        row = self._table.of_worker(member.session)
        return None if row is None else row.member

    def find_seat(self, member: Member) -> tuple[int, StageRun] | None:
        """Return the id of a worker's row and its stages in it; None if it is a spare."""
        row = self._table.of_worker(member.session)
        if row is None:
            return None
        return row.row, next(seat.stages for seat in row.seats if seat.worker == member.session)

    def expects(self, member: Member, ready: pb.Ready) -> bool:
        """Return whether a worker has built the stages that it was told last."""
        return self._built.expects(member.session, ready)

    def note_built(self, member: Member, ready: pb.Ready, now: float) -> Refusal | None:
        """Record which parts of the layout a worker has built; return why they can't be, None if they can."""
        refusal = self._built.note(member.session, ready)
        if refusal is not None:
            return refusal
        row = self._table.of_worker(member.session)
        if row is None:
            self._former.settle(now)
        else:
            self._former.refresh(row)
        return None

    def note_too_large(self, member: Member, failure: pb.Failure, now: float) -> Refusal | None:
        """Give a worker fewer stages, since those that it was told don't fit; return why it can have none at all."""
        return self._former.note_too_large(member, failure, now)

    def describe_shortage(self, now: float) -> str | None:
        """Return what the job waits for before a row can compute; None if one can."""
        return self._former.describe_shortage(now)

    # ---- leases ----

    def _find_lease(self, member: Member, lease: int) -> tuple[Row, RowLease] | None:
        """Return a worker's row and its lease; None if the lease is void."""
        row = self._table.of_worker(member.session)
        found = None if row is None else row.leases.get(lease)
        return None if row is None or found is None else (row, found)

    def weights_loaded(self, member: Member, version: Version) -> tuple[Member, Version] | None:
        """Record the version that a worker has; return its row once all of its workers have a later one than before."""
        row = self._table.of_worker(member.session)
        member.loaded_version = version
        if row is None:
            return None
        before = row.member.loaded_version
        self._former.refresh(row)
        after = row.member.loaded_version
        return None if after is None or after == before else (row.member, after)

    def computed(self, member: Member, computed: pb.Computed) -> tuple[Member, pb.Computed, Answers] | None:
        """Record a worker's part of a lease; return the row, its report and checksums once all have computed theirs."""
        found = self._find_lease(member, computed.lease)
        if found is None or member.session in found[1].computed:
            return None
        row, lease = found
        lease.computed[member.session] = computed
        if len(lease.computed) < len(row.seats):
            return None
        self._former.note_links_work(row)
        self._note_findings(row, lease)
        parts = lease.computed.values()
        joined = pb.Computed(
            job=computed.job,
            generation=computed.generation,
            step=computed.step,
            lease=computed.lease,
            seconds=max(each.seconds for each in parts),
            tokens=max(each.tokens for each in parts),
        )
        reports = [(self._workers[session].name, each.checksums) for session, each in lease.computed.items()]
        return row.member, joined, collect_answers(row.member.workers, computed.lease, reports)

    def _note_findings(self, row: Row, lease: RowLease) -> None:
        """Record losses, gradients that are not finite, and the speed of each worker with its stages."""
        step_sum = self._lease_book.step_sum
        for session, part in lease.computed.items():
            member = self._workers[session]
            assignment = self._lease_book.find_assignment(row.member.session, part.lease)
            if step_sum is not None and assignment is not None:
                step_sum.note_losses(assignment, part.losses)
                step_sum.blame(assignment, member.name, part.non_finite)
                member.record_lease(assignment.node.count, part.seconds)

    def evaluated(self, member: Member, evaluated: pb.Evaluated) -> tuple[Member, pb.Evaluated] | None:
        """Record a worker's part of an evaluation; return the row and its losses once all workers have done theirs."""
        found = self._find_lease(member, evaluated.lease)
        if found is None:
            return None
        row, lease = found
        lease.evaluated[member.session] = evaluated
        if len(lease.evaluated) < len(row.seats):
            return None
        del row.leases[evaluated.lease]
        joined = pb.Evaluated()
        joined.CopyFrom(evaluated)
        del joined.losses[:]
        for part in lease.evaluated.values():
            joined.losses.extend(part.losses)
        return row.member, joined

    def find_described(self, member: Member) -> Member | None:
        """Return a worker's row if the worker has the first stage, and so describes the row's initial weights."""
        row = self._table.of_worker(member.session)
        return row.member if row is not None and row.seats[0].worker == member.session else None

    def void_failed(self, member: Member, failure: pb.Failure, now: float) -> Member | None:
        """Void a row's lease that failed on a worker; return the row, None if a link of the worker is at fault."""
        found = self._find_lease(member, failure.lease)
        if found is None:
            return None
        row, _ = found
        if failure.neighbour and self._former.note_broken_link(row, member, failure, now):
            return None
        self._table.void(row, failure.lease)
        return row.member

    # ---- chunks ----

    def check_piece(self, member: Member, header: ChunkHeader) -> Refusal | None:
        """Return why a worker can't send this piece of a chunk; None if it is one of its parts of the layout."""
        return self._built.check_piece(member.session, header)

    def waits_for_report(self, member: Member, header: ChunkHeader) -> bool:
        """Return whether a chunk is chunk 0 of a gradient, and a worker has not computed its part, so losses lack."""
        return header.kind == GRADIENT and header.index == 0 and not self._is_computed(member, header.lease)

    def _is_computed(self, member: Member, lease: int) -> bool:
        found = self._find_lease(member, lease)
        return found is not None and len(found[1].computed) == len(found[0].seats)

    def weights_of(self, member: Member) -> LayoutParts | None:
        """Return the pieces of weights that a worker gets: none while it has no stages or has built nothing."""
        return NOTHING if self.find(member) is None else self._built.loads(member.session)
