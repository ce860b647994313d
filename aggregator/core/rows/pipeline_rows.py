"""The rows of a job with a pipeline, which are formed of workers as these come and go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aggregator.core.job_report import JobReport
from aggregator.core.leasing.lease_book import LeaseBook
from aggregator.core.leasing.results import Reports
from aggregator.core.membership.job_members import JobMembers
from aggregator.core.membership.members import Member
from aggregator.core.rows.built_stages import NOTHING, BuiltStages, stages_of
from aggregator.core.rows.former import RowFormer
from aggregator.core.rows.job_rows import JobRows
from aggregator.core.rows.row import Row
from aggregator.core.rows.row_table import RowTable
from aggregator.core.sums.chunk_router import ChunkRouter
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import GRADIENT, ChunkHeader
from services.errors import Refusal
from services.protocol.plan import JobPlan
from services.tensors.layout_parts import LayoutParts, Piece
from services.timeouts import Timeouts


class PipelineRows(JobRows):
    """The rows of one job with a pipeline.

    Args:
        plan: the job's stages, and how many workers it counts and needs.
        table: the rows; none yet.
        workers: the connected workers, by session.
        job_members: has workers enter the job, and build their stages.
        lease_book: the leases of the rows.
        router: knows the newest weights.
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
        super().__init__(table, workers, job_members, lease_book)
        self._router = router
        self._stages = plan.stages
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

    def expects(self, member: Member, ready: pb.Ready) -> bool:
        """Return whether a worker has built the stages that it was told last."""
        return super().expects(member, ready) and self._built.ordered(member.session) == stages_of(ready)

    def note_built(self, member: Member, ready: pb.Ready, now: float) -> Refusal | None:
        """Record which parts of the layout a worker has built; return why they can't be, None if they can."""
        refusal = self._built.note(member.session, ready)
        if refusal is not None:
            return refusal
        row = self.find(member)
        if row is None:
            self._former.settle(now)
        else:
            self._former.complete(row)
        return None

    def note_too_large(self, member: Member, failure: pb.Failure, now: float) -> Refusal | None:
        """Give a worker fewer stages, since those that it was told don't fit; return why it can have none at all."""
        return self._former.note_too_large(member, failure, now)

    @property
    def needed_workers(self) -> int:
        """The least number of workers with which a row can compute."""
        return self._former.needed_workers

    def describe_shortage(self, now: float) -> str | None:
        """Return what the job waits for before a row can compute; None if one can."""
        return self._former.describe_shortage(now)

    # ---- leases ----

    def computed(self, member: Member, computed: pb.Computed) -> tuple[Row, Reports] | None:
        """Record a worker's part of a lease; a lease that all have computed has passed each link of their row."""
        found = super().computed(member, computed)
        if found is not None:
            self._former.note_links_work(found[0])
        return found

    def void_failed(self, member: Member, failure: pb.Failure, now: float) -> Row | None:
        """Void a lease that failed on a worker; return the row, None if a link of the worker is at fault."""
        found = self._find_lease(member, failure.lease)
        if found is not None and self._former.note_broken_link(found[0], member, failure, now):
            return None
        return super().void_failed(member, failure, now)

    # ---- chunks ----

    def check_pieces(self, member: Member, header: ChunkHeader, pieces: Sequence[Piece]) -> Refusal | None:
        """Return why a worker can't send pieces of chunks; None if all are of its parts of the layout."""
        if header.HasField("findings"):
            return Refusal(f"a piece of chunk {header.index} has findings, expected them with Computed alone")
        refusals = (self._built.check_piece(member.session, piece) for piece in pieces)
        return next(filter(None, refusals), None)

    def check_findings(self, member: Member, computed: pb.Computed) -> Refusal | None:
        """Return why a worker's findings can't be those of its stages; None if they can. The last stage counts."""
        found, count = self._find_lease(member, computed.lease), computed.findings.count
        if found is None:  # void: of a row before, in which it had other stages
            return None
        row, _ = found
        if row.stages_of(member).stop == self._stages:
            return self._check_count(row, member, computed.lease, count)
        return Refusal(f"findings.count is {count}, expected 0 without the last stage") if count else None

    def waits_for_report(self, member: Member, header: ChunkHeader) -> bool:
        """Return whether chunk 0 of a gradient waits, since a worker has not computed its part, so losses lack."""
        return header.kind == GRADIENT and not self._is_computed(member, header.lease)

    def _is_computed(self, member: Member, lease: int) -> bool:
        found = self._find_lease(member, lease)
        return found is not None and len(found[1].computed) == len(found[0].workers)

    def weights_of(self, member: Member) -> LayoutParts | None:
        """Return the pieces of weights that a worker gets: none while it has no stages or has built nothing."""
        return NOTHING if self.find(member) is None else self._built.loads(member.session)
