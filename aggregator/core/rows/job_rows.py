"""The layer between the workers of a pipeline and the rest of the core, which knows their rows only.

Orders go out through `RowTable.send`. Here are the forming of rows, and what workers report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from aggregator.core.events import Assemble, KeepPiece, Outbox
from aggregator.core.job_report import JobReport
from aggregator.core.leasing.lease_book import LeaseBook
from aggregator.core.membership.job_members import JobMembers
from aggregator.core.membership.members import Member, total_peak_flops
from aggregator.core.rows.forming import Candidate, Seat, Seats, find_gaps, form_rows
from aggregator.core.rows.row_table import Row, RowTable
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import GRADIENT, ChunkHeader
from services.errors import Refusal
from services.pipeline.split import StageRun
from services.printable import printable
from services.protocol.versions import Version
from services.tensors.layout import chunk_range
from services.tensors.layout_parts import LayoutParts, Piece, check_cover, join_parts, parse_parts

NAMES_CHARACTERS = 200
"""Longest list of a row's workers."""


class Stages:
    """What a worker of the job has been told to build, and what it has built.

    Attributes:
        ordered: the stages of its last Join.
        parts: the parts of the layout whose gradients it sends; None until it is ready.
        loads: the parts of the layout whose weights it is sent; None until it is ready.
        elements: number of elements of the whole layout; 0 until it is ready.
    """

    def __init__(self, ordered: StageRun) -> None:
        self.ordered = ordered
        self.parts: LayoutParts | None = None
        self.loads: LayoutParts | None = None
        self.elements = 0


class JobRows:
    """The rows of one job: which workers they have, and what these report.

    Args:
        stages: number of stages of the pipeline.
        table: the rows.
        workers: the connected workers, by session.
        job_members: has workers build their stages.
        lease_book: the leases of the rows.
        report: the job's record and log.
        new_row: returns the id of a row that was never used before.
        share_after_seconds: how long a row waits for another worker before its workers share stages.
        out: takes the effects on pieces.
    """

    def __init__(
        self,
        *,
        stages: int,
        table: RowTable,
        workers: Mapping[int, Member],
        job_members: JobMembers,
        lease_book: LeaseBook,
        report: JobReport,
        new_row: Callable[[], int],
        share_after_seconds: float,
        out: Outbox,
    ) -> None:
        self._count = stages
        self._table = table
        self._workers = workers
        self._job_members = job_members
        self._lease_book = lease_book
        self._report = report
        self._new_row = new_row
        self._share_after_seconds = share_after_seconds
        self._out = out
        self._stages: dict[int, Stages] = {}  # by session
        self._most_stages: dict[int, int] = {}  # by session: how many fit its mesh
        self._blames: dict[int, int] = {}  # by session: broken links that others name it for
        self._broken_link = ""
        self._candidates: list[int] = []
        self._candidates_since_seconds = 0.0

    # ---- forming ----

    def settle(self, now: float) -> None:
        """Form the rows that the workers allow, and have workers build the stages that they lack."""
        self._form([row.seats for row in self._table], now)

    def _form(self, former: Iterable[Seats], now: float, replaced: int | None = None) -> None:
        """Form rows again.

        Args:
            former: the rows so far.
            now: the time, on the monotonic clock.
            replaced: worker that should not get its stages again, if there is a spare.
        """
        for session in self._stages.keys() - self._workers.keys():
            self._forget_worker(session)
        candidates = [self._candidate(each, replaced) for each in self._workers.values() if _may_take(each)]
        candidates.sort(key=lambda each: self._blames.get(each.worker, 0))  # stable: else in order of arrival
        present = sorted(each.worker for each in candidates)
        if present != self._candidates:
            self._candidates, self._candidates_since_seconds = present, now
        shares = now - self._candidates_since_seconds > self._share_after_seconds
        wanted = [seats for seats in form_rows(self._count, candidates, former, shares=shares) if seats]
        for row in self._table:
            if row.seats not in wanted:
                self._dissolve(row, now)
        known = {row.seats for row in self._table}
        for seats in wanted:
            if seats not in known:
                self._table.add(self._new_row(), seats, self._name(seats), now)
        seated = {seat.worker: seat.stages for seats in wanted for seat in seats}
        for candidate in candidates:
            member = self._workers[candidate.worker]
            member.spare = member.session not in seated
            if not member.spare:
                self._build(member, seated[member.session], now)
        self.refresh(now)

    def _candidate(self, member: Member, replaced: int | None) -> Candidate:
        session = member.session
        known = self._stages.get(session)
        built = None if known is None or session == replaced else known.ordered
        return Candidate(session, self._most_stages.get(session, self._count), built)

    def _name(self, seats: Seats) -> str:
        return printable(", ".join(self._workers[seat.worker].name for seat in seats), NAMES_CHARACTERS)

    def _build(self, member: Member, stages: StageRun, now: float) -> None:
        known = self._stages.get(member.session)
        if known is None or known.ordered != stages:
            self._stages[member.session] = Stages(stages)
            member.lose_build()
            self._job_members.build(member, now, stages)

    def _dissolve(self, row: Row, now: float) -> None:
        """End a row: its leases alone are void."""
        self._lease_book.abandon(row.member, now)
        self._table.remove(row)

    def _forget_worker(self, session: int) -> None:
        for known in (self._stages, self._most_stages, self._blames):
            known.pop(session, None)

    def refresh(self, now: float) -> None:
        """Derive the state of each row from those of its workers."""
        for row in self._table:
            workers = [self._workers[seat.worker] for seat in row.seats]
            built = [self._stages[seat.worker] for seat in row.seats]
            complete = not find_gaps(self._count, row.seats)
            row.member.ready = (
                complete
                and all(each.able for each in workers)
                and all(each.parts is not None for each in built)
            )
            versions = [each.loaded_version for each in workers if each.loaded_version is not None]
            row.member.loaded_version = min(versions) if len(versions) == len(workers) else None
            row.member.peak_flops = total_peak_flops(workers)
            if row.member.ready and not row.introduced:
                self._introduce(row)

    def _introduce(self, row: Row) -> None:
        """Tell the workers of a row of each other."""
        row.introduced = True
        order = pb.Row(job=self._report.job.id, row=row.row)
        for seat in row.seats:
            worker = self._workers[seat.worker]
            order.seats.add(
                name=worker.name,
                incarnation=worker.incarnation,
                address=worker.pipeline_address,
                first_stage=seat.stages.first,
                stages=seat.stages.count,
            )
        self._table.send(row.member.session, order)
        self._report.note("member", f"a row of {self._count} stages is ready: {self._describe(row.seats)}")

    def _describe(self, seats: Iterable[Seat]) -> str:
        return ", ".join(f"{each.stages} on {self._workers[each.worker].name}" for each in seats)

    # ---- what workers report of themselves ----

    def expects(self, member: Member, ready: pb.Ready) -> bool:
        """Return whether a worker has built the stages that it was told last."""
        known = self._stages.get(member.session)
        return known is not None and (ready.first_stage, ready.stages) == (
            known.ordered.first,
            known.ordered.count,
        )

    def note_built(self, member: Member, ready: pb.Ready) -> Refusal | None:
        """Record which parts of the layout a worker has built; return why they can't be, None if they can."""
        known = self._stages[member.session]
        parts = parse_parts(ready.parts, ready.elements)
        shared = parse_parts(ready.shared, ready.elements)
        if isinstance(parts, Refusal):
            return parts
        if isinstance(shared, Refusal):
            return shared
        known.parts, known.loads, known.elements = parts, join_parts([parts, shared]), ready.elements
        row = self._table.of_worker(member.session)
        others = [] if row is None else [self._stages[seat.worker] for seat in row.seats]
        complete = row is not None and not find_gaps(self._count, row.seats)
        if not complete or any(each.parts is None for each in others):
            return None
        return check_cover([each.parts for each in others if each.parts is not None], ready.elements)

    def note_too_large(self, member: Member, failure: pb.Failure, now: float) -> Refusal | None:
        """Give a worker fewer stages, since those that it was told don't fit; return why it can have none at all."""
        known = self._stages.pop(member.session, None)
        if known is None:
            return None
        if known.ordered.count == 1:
            return Refusal(failure.reason)
        member.building_since_seconds = None
        self._most_stages[member.session] = known.ordered.count - 1
        text = f"{known.ordered} do not fit worker {member.name}, it gets fewer: {failure.reason}"
        self._report.note("member", text)
        self.settle(now)
        return None

    def note_broken_link(self, member: Member, failure: pb.Failure, now: float) -> None:
        """Form a row again whose worker can't exchange activations with another: without it, if there is a spare."""
        row = self._table.of_worker(member.session)
        if row is None or failure.lease not in row.leases:
            return
        self._broken_link = f"worker {member.name} can't reach worker {failure.neighbour}: {failure.reason}"
        self._report.note("member", self._broken_link)
        former = [each.seats for each in self._table if each is not row]
        blamed = next(
            (seat for seat in row.seats if self._workers[seat.worker].name == failure.neighbour), None
        )
        if blamed is not None:
            self._blames[blamed.worker] = self._blames.get(blamed.worker, 0) + 1
        spare = any(each.spare for each in self._workers.values())
        left = tuple(seat for seat in row.seats if seat is not blamed) if spare else row.seats
        self._dissolve(row, now)
        self._form([*former, left], now, replaced=blamed.worker if blamed is not None else None)

    # ---- what workers report of leases ----

    def weights_loaded(self, member: Member, loaded: pb.WeightsLoaded, now: float) -> Member | None:
        """Record the version that a worker has; return its row if all of its workers have another version now."""
        member.loaded_version = Version(loaded.generation, loaded.step)
        row = self._table.of_worker(member.session)
        before = None if row is None else row.member.loaded_version
        self.refresh(now)
        return row.member if row is not None and row.member.loaded_version != before else None

    def computed(self, member: Member, computed: pb.Computed) -> tuple[Member, pb.Computed] | None:
        """Record a worker's part of a lease; return the row and its report once all workers have computed theirs."""
        row = self._table.of_worker(member.session)
        lease = None if row is None else row.leases.get(computed.lease)
        if row is None or lease is None or member.session in lease.computed:
            return None
        lease.computed[member.session] = computed
        if len(lease.computed) < len(row.seats):
            return None
        self._broken_link = ""
        joined = pb.Computed(
            job=computed.job,
            generation=computed.generation,
            step=computed.step,
            lease=computed.lease,
            seconds=max(each.seconds for each in lease.computed.values()),
            tokens=max(each.tokens for each in lease.computed.values()),
        )
        step_sum = self._lease_book.step_sum
        assignment = self._lease_book.find_assignment(row.member.session, computed.lease)
        for session, part in lease.computed.items():
            self._blames.pop(session, None)
            if step_sum is not None and assignment is not None:
                step_sum.note_losses(assignment, part.losses)
                step_sum.blame(assignment, self._workers[session].name, part.non_finite)
        return row.member, joined

    def evaluated(self, member: Member, evaluated: pb.Evaluated) -> tuple[Member, pb.Evaluated] | None:
        """Record a worker's part of an evaluation; return the row and its losses once all workers have done theirs."""
        row = self._table.of_worker(member.session)
        lease = None if row is None else row.leases.get(evaluated.lease)
        if row is None or lease is None:
            return None
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

    def describes(self, member: Member) -> Member | None:
        """Return a worker's row if the worker has the first stage, and so describes the row's initial weights."""
        row = self._table.of_worker(member.session)
        return row.member if row is not None and row.seats[0].worker == member.session else None

    def void(self, member: Member, lease: int) -> None:
        """Make a lease of a worker's row void, since it failed on the worker."""
        row = self._table.of_worker(member.session)
        if row is not None:
            self._table.void(row, lease)

    # ---- chunks ----

    def loads_of(self, session: int) -> LayoutParts:
        """Return the pieces of weights that a worker is sent; none before it is ready."""
        known = self._stages.get(session)
        return known.loads if known is not None and known.loads is not None else LayoutParts(())

    def check_piece(self, session: int, header: ChunkHeader) -> Refusal | None:
        """Return why a worker can't send this piece of a chunk; None if it is one of its parts of the layout."""
        known = self._stages.get(session)
        piece = Piece(header.index, header.offset, header.elements)
        if known is not None and known.parts is not None and known.parts.has(piece):
            return None
        found = f"elements {piece.offset} to {piece.offset + piece.elements} of chunk {piece.chunk}"
        return Refusal(f"{found} are no piece of the parts of the layout that this worker has built")

    def take_piece(self, session: int, header: ChunkHeader, *, waits: bool) -> ChunkHeader | None:
        """Keep a piece of a row's chunk; return the chunk's header if the chunk is whole, else None.

        Args:
            session: the worker's session.
            header: header of the piece, which `check_piece` has passed.
            waits: whether the chunk must wait for `take_whole`, even if it is whole.
        """
        elements = self._stages[session].elements
        start, stop = chunk_range(elements, header.index)
        if header.elements == stop - start and not waits:
            return header
        if self._table.pieces.add(header.lease, Piece(header.index, header.offset, header.elements)):
            self._out.put(KeepPiece(header.lease, header.index, header.offset))
        return None if waits else self.take_whole(header, elements)

    def take_whole(self, header: ChunkHeader, elements: int) -> ChunkHeader | None:
        """Put a chunk together if all of its pieces are kept, and return its header; else None.

        Args:
            header: header of a piece of the chunk.
            elements: number of elements of the layout.
        """
        pieces = self._table.pieces
        if not pieces.is_whole(header.lease, header.index, elements):
            return None
        pieces.take(header.lease, header.index)
        self._out.put(Assemble(header.lease, header.index))
        whole = ChunkHeader()
        whole.CopyFrom(header)
        start, stop = chunk_range(elements, header.index)
        whole.offset, whole.elements = start, stop - start
        return whole

    def first_chunk(self, computed: pb.Computed) -> ChunkHeader:
        """Return a header of the first chunk of a computed lease, which has waited for the report."""
        return ChunkHeader(
            job=computed.job,
            generation=computed.generation,
            step=computed.step,
            lease=computed.lease,
            kind=GRADIENT,
            index=0,
        )

    # ---- for people ----

    def describe_shortage(self) -> str | None:
        """Return what the job waits for before a row can compute; None if one can."""
        if any(row.member.ready for row in self._table):
            return f"forms its row again after: {self._broken_link}" if self._broken_link else None
        rows = list(self._table)
        gaps = find_gaps(self._count, rows[0].seats) if rows else [StageRun(0, self._count)]
        others = "; ".join(
            f"{each.name}: {each.describe()}" for each in self._workers.values() if not _may_take(each)
        )
        if gaps:
            limits = "; ".join(
                f"at most {most} fit {self._workers[session].name}"
                for session, most in self._most_stages.items()
                if session in self._workers
            )
            reasons = "; ".join(filter(None, (limits, others)))
            lacking = ", ".join(map(str, gaps))
            return f"waits for a worker for {lacking} of {self._count}{f' ({reasons})' if reasons else ''}"
        building = [
            f"{self._workers[seat.worker].name} ({seat.stages}, {self._workers[seat.worker].describe()})"
            for seat in rows[0].seats
            if not self._workers[seat.worker].able
        ]
        return f"waits for workers to build their stages: {', '.join(building)}"


def _may_take(member: Member) -> bool:
    """Return whether a worker may be given stages."""
    fits = member.refusal is None and member.unfit is None and member.code_wait is None
    return fits and member.has_data_stream
