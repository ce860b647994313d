"""The rows of a job as its leases see them: what workers report of a lease becomes the report of their row.

Without a pipeline each worker is a row, from its first Join until it is gone. `PipelineRows` forms the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aggregator.core.leasing.lease_book import LeaseBook
from aggregator.core.leasing.results import Reports
from aggregator.core.membership.job_members import JobMembers
from aggregator.core.membership.members import Member
from aggregator.core.rows.row import WHOLE_MODEL, Row, RowLease
from aggregator.core.rows.row_table import RowTable
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import GRADIENT, ChunkHeader
from services.errors import Refusal
from services.protocol.bounds import MAX_WORKERS
from services.protocol.findings import check_count
from services.protocol.versions import Version
from services.tensors.layout_parts import LayoutParts, Piece


class JobRows:
    """The rows of one job.

    Args:
        table: the rows; none yet.
        workers: the connected workers, by session.
        job_members: has workers enter the job, and build it.
        lease_book: the leases of the rows.
    """

    def __init__(
        self,
        table: RowTable,
        workers: Mapping[int, Member],
        job_members: JobMembers,
        lease_book: LeaseBook,
    ) -> None:
        self._table = table
        self._workers = workers
        self._job_members = job_members
        self._lease_book = lease_book
        self._late: dict[str, Row] = {}  # late rows whose worker's connection is lost, by its incarnation

    def find(self, member: Member) -> Row | None:
        """Return the row of a worker; None if it is a spare."""
        return self._table.of_worker(member.session)

    # ---- workers ----

    def join(self, members: Iterable[Member], now: float) -> None:
        """Take workers into the job, unless they are excluded, and have them build what their rows need."""
        for member in members:
            row = self.find(member) or self._table.add_worker(member)
            row.take_after(self._late.pop(member.incarnation, row))
            if self._job_members.enter(member):
                self._job_members.build(member, now, WHOLE_MODEL)
            row.refresh()

    def settle(self, now: float) -> None:
        """Take account of workers that can do more or less than before, and of the time."""
        for row in self._table:
            row.refresh()

    def release(self, member: Member, now: float) -> None:
        """Release the leases of a worker that is gone, refused or unfit.

        A process that comes back has the same stalls behind it as before.
        """
        row = self.find(member)
        if row is None:
            return
        self._lease_book.abandon(row, now)
        row.refresh()
        if member.session in self._workers:
            return
        self._table.remove(row)
        if row.stalls:
            self._late[member.incarnation] = row
            if len(self._late) > MAX_WORKERS:
                del self._late[next(iter(self._late))]

    def expects(self, member: Member, ready: pb.Ready) -> bool:
        """Return whether a worker has built what it was told last.

        Job and stages alone don't say it: a worker that leaves, and comes back before its report of the first time,
        builds them twice.
        """
        return ready.build == member.builds

    def note_built(self, member: Member, ready: pb.Ready, now: float) -> Refusal | None:
        """Record which parts of the layout a worker has built; return why they can't be, None if they can."""
        row = self.find(member)
        if row is not None:
            row.refresh()
        return None

    def note_too_large(self, member: Member, failure: pb.Failure, now: float) -> Refusal | None:
        """Give a worker less to build, since that does not fit it; return why it can't take part, None if it can."""
        return Refusal(failure.reason)

    @property
    def needed_workers(self) -> int:
        """The least number of workers with which a row can compute."""
        return 1

    def describe_shortage(self, now: float) -> str | None:
        """Return what the job waits for before a row can compute; None if one can, or the workers' states say it."""
        return None

    # ---- leases ----

    def _find_lease(self, member: Member, lease: int) -> tuple[Row, RowLease] | None:
        """Return a worker's row and its lease; None if the lease is void."""
        row = self.find(member)
        found = None if row is None else row.leases.get(lease)
        return None if row is None or found is None else (row, found)

    def weights_loaded(self, member: Member, version: Version) -> Row | None:
        """Record the version that a worker has; return its row if no worker of it has an earlier one."""
        member.loaded_version = version
        row = self.find(member)
        if row is not None:
            row.refresh()
        return row if row is not None and row.loaded_version == version else None

    def computed(self, member: Member, computed: pb.Computed) -> tuple[Row, Reports] | None:
        """Record a worker's part of a lease; return the row and all parts once its workers have computed theirs."""
        found = self._find_lease(member, computed.lease)
        if found is None or member.session in found[1].computed:
            return None
        row, lease = found
        lease.computed[member.session] = computed
        if len(lease.computed) < len(row.workers):
            return None
        return row, [(self._workers[session], each) for session, each in lease.computed.items()]

    def evaluated(self, member: Member, evaluated: pb.Evaluated) -> tuple[Row, list[pb.BatchLoss]] | None:
        """Record a worker's part of an evaluation; return the row and its losses once all workers have done theirs."""
        found = self._find_lease(member, evaluated.lease)
        if found is None:
            return None
        row, lease = found
        lease.evaluated[member.session] = evaluated
        if len(lease.evaluated) < len(row.workers):
            return None
        del row.leases[evaluated.lease]
        return row, [each for part in lease.evaluated.values() for each in part.losses]

    def find_described(self, member: Member) -> Row | None:
        """Return a worker's row if it is the first one there, which describes the row's initial weights."""
        row = self.find(member)
        return row if row is not None and row.session == member.session else None

    def void_failed(self, member: Member, failure: pb.Failure, now: float) -> Row | None:
        """Void a lease that failed on a worker; return its row, None if the worker is not at fault."""
        found = self._find_lease(member, failure.lease)
        if found is None:
            return None
        self._table.void(found[0], failure.lease, but=member.session)
        return found[0]

    # ---- chunks ----

    def check_pieces(self, member: Member, header: ChunkHeader, pieces: Sequence[Piece]) -> Refusal | None:
        """Return why a worker can't send pieces of chunks, of which this is the first one's header; None if it can."""
        row = self.find(member)
        if row is None or header.kind != GRADIENT or all(each.chunk for each in pieces):
            return None
        return self._check_count(row, member, header.lease, header.findings.count)

    def _check_count(self, row: Row, member: Member, lease: int, count: int) -> Refusal | None:
        """Return why a worker's count can't be that of a lease; None if it can, or the lease is void."""
        assignment = self._lease_book.find_assignment(row.session, lease)
        return None if assignment is None else check_count(count, assignment.node.count, member.tokens)

    def check_findings(self, member: Member, computed: pb.Computed) -> Refusal | None:
        """Return why a worker can't report a lease with these findings; None if it can. They come with chunk 0."""
        if computed.HasField("findings"):
            return Refusal("Computed has findings, expected them with chunk 0 alone")
        return None

    def waits_for_report(self, member: Member, header: ChunkHeader) -> bool:
        """Return whether chunk 0 of a lease waits until its row has reported it as computed, since the losses lack."""
        return False

    def weights_of(self, member: Member) -> LayoutParts | None:
        """Return the pieces of weights that a worker gets; None for all chunks."""
        return None
