"""The rows of a job as its workers come and go: who gets which stages, and which rows can compute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aggregator.core.job_report import JobReport
from aggregator.core.leasing.lease_book import LeaseBook
from aggregator.core.membership.job_members import JobMembers
from aggregator.core.membership.members import Member
from aggregator.core.rows.broken_links import BrokenLinks, Link, links_of
from aggregator.core.rows.built_stages import BuiltStages
from aggregator.core.rows.departures import DepartedWorkers
from aggregator.core.rows.detours import count_avoided, form_linked_rows
from aggregator.core.rows.forming import Candidate, Seat, Seats, find_gaps
from aggregator.core.rows.gathering import Gathering
from aggregator.core.rows.row import Row
from aggregator.core.rows.row_table import RowTable
from protos import cluster_pb2 as pb
from services.errors import Refusal
from services.names import natural_order
from services.pipeline.row_ids import row_number
from services.pipeline.split import StageRun
from services.printable import printable
from services.protocol.versions import Version
from services.timeouts import Timeouts

REASONS_CHARACTERS = 200
"""Longest list of reasons why workers take no stages."""


class RowFormer:
    """Forms the rows of one job.

    Args:
        stages: number of stages of the pipeline.
        pipelines: number of pipelines that the job counts.
        min_workers: number of workers below which the job waits, and no worker builds stages of others.
        table: the rows.
        built: what the workers have been told to build.
        workers: the connected workers, by session.
        job_members: has workers build their stages.
        lease_book: the leases of the rows.
        report: the job's record and log.
        timeouts: the cluster's timeouts.
    """

    def __init__(
        self,
        *,
        stages: int,
        pipelines: int,
        min_workers: int,
        table: RowTable,
        built: BuiltStages,
        workers: Mapping[int, Member],
        job_members: JobMembers,
        lease_book: LeaseBook,
        report: JobReport,
        timeouts: Timeouts,
    ) -> None:
        self._count = stages
        self._table = table
        self._built = built
        self._workers = workers
        self._job_members = job_members
        self._lease_book = lease_book
        self._report = report
        self._timeouts = timeouts
        self._min_workers = min_workers
        self._gathering = Gathering(pipelines * stages, timeouts.retry)
        self._was_complete = False
        self._most_stages: dict[int, int] = {}  # by session: how many fit its mesh
        # By session: broken links that others name it for, and trials of rows without it.
        self._blames: dict[int, int] = {}
        # By session: rows that took too long while it was silent, since the last one that worked.
        self._late_rows: dict[int, int] = {}
        self._broken_links = BrokenLinks(timeouts)
        self._departed = DepartedWorkers(timeouts)
        self._seated: dict[int, str] = {}  # by session: names of the workers that had stages last
        self._avoided: frozenset[Link] = frozenset()  # when rows were formed last
        self._mismatch: Refusal | None = None
        self._present: list[int] = []
        self._shares_from_seconds = 0.0  # when workers begin to share stages that no worker has

    @property
    def needed_workers(self) -> int:
        """The least number of workers that have all stages together, as far as is known of their meshes."""
        return -(-self._count // max(self._most_stages.values(), default=self._count))

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
        self._forget_lost(now)
        expected = [each for each in self._workers.values() if self._fits(each)]
        able = [each for each in expected if each.has_data_stream]
        reachable = [each for each in able if each.pipeline_address]
        steady = [each for each in reachable if not self._departed.why_left_out(each.name, now)]
        if self._can_take_all(steady):
            reachable = steady
        present = sorted(each.session for each in reachable)
        if present != self._present:
            # When a job begins, the workers that run have come after `retry`. One that has died may be started again.
            patience_seconds = self._timeouts.deaf if self._was_complete else self._timeouts.retry
            self._present, self._shares_from_seconds = present, now + patience_seconds
        shares = now > self._shares_from_seconds and len(able) >= self._min_workers
        candidates = [self._candidate(each, replaced, patient=not shares) for each in reachable]
        candidates.sort(key=self._rank)
        if not self._gathering.update([each for each in expected if each.pipeline_address], now):
            candidates.clear()
        self._avoided = self._broken_links.avoided(now)
        linked = form_linked_rows(self._count, candidates, list(former), self._avoided, shares=shares)
        wanted = [seats for seats in linked if seats]
        wanted += [seats for each in able if not each.pipeline_address for seats in self._alone(each)]
        for row in self._table:
            if row.seats not in wanted:
                self._dissolve(row, now)
        known = {row.seats for row in self._table}
        for seats in wanted:
            if seats not in known:
                self._table.form(seats)
        seated = {seat.worker: seat.stages for seats in wanted for seat in seats}
        self._seated = {session: self._workers[session].name for session in seated}
        leaves_out = any(each.count > 1 for each in seated.values())  # spares would have them otherwise
        for member in self._workers.values():
            stages = seated.get(member.session)
            member.spare = stages is None and self._may_take(member)
            left_out = self._departed.why_left_out(member.name, now)
            member.spare_reason = (self._why_alone(member) or left_out) if member.spare else ""
            if member.spare and leaves_out and not member.spare_reason:
                member.spare_reason = self._broken_links.why_avoided(member.session, now)
            if stages is not None and self._built.order(member.session, stages):
                member.lose_build()
                self._job_members.build(member, now, stages)
        for row in self._table:
            self.complete(row)

    def _fits(self, member: Member) -> bool:
        """Return whether nothing but its data stream may keep a worker from stages.

        One whose device hangs keeps its own until it is replaced.
        """
        hinders = member.hangs and self._table.of_worker(member.session) is None
        return member.refusal is None and member.unfit is None and member.claim_wait is None and not hinders

    def _may_take(self, member: Member) -> bool:
        """Return whether a worker may be given stages."""
        return self._fits(member) and member.has_data_stream

    def _can_take_all(self, members: list[Member]) -> bool:
        """Return whether workers suffice for the job, if they share its stages."""
        most = sum(self._most_stages.get(each.session, self._count) for each in members)
        return most >= self._count and len(members) >= self._min_workers

    def _forget_lost(self, now: float) -> None:
        for session in self._seated.keys() - self._workers.keys():
            self._departed.note(self._seated.pop(session), now)
        self._built.keep_only(self._workers.keys())
        self._broken_links.keep_only(self._workers.keys())
        for known in (self._most_stages, self._blames, self._late_rows):
            for session in known.keys() - self._workers.keys():
                del known[session]

    def _candidate(self, member: Member, replaced: int | None, *, patient: bool) -> Candidate:
        """Return a worker as a candidate. One that has come with built stages is patient, not one with other orders."""
        session = member.session
        ordered, brought = self._built.ordered(session), member.find_brought(self._report.job.id)
        built = None if session == replaced else ordered or brought
        most = self._most_stages.get(session, self._count)
        return Candidate(session, most, built, patient and ordered is None and brought is not None)

    def _rank(self, candidate: Candidate) -> tuple[int, list[tuple[int, str]]]:
        """Return a sort key: workers that are not blamed first, then by name.

        A launch names workers by rank, and fills one host after another: so neighbouring stages share hosts.
        """
        name = self._workers[candidate.worker].name
        return self._blames.get(candidate.worker, 0), natural_order(name)

    def _alone(self, member: Member) -> list[Seats]:
        """Return the row of a worker that others can't reach: it has all stages, or none."""
        fits = self._most_stages.get(member.session, self._count) == self._count
        return [(Seat(member.session, StageRun(0, self._count)),)] if fits else []

    def _why_alone(self, member: Member) -> str:
        """Return why a spare worker takes no stages beside others; empty if it can."""
        if member.pipeline_address:
            return ""
        return (
            "it listens on loopback (--listen, --advertise), so no other worker can reach it, and the pipeline's "
            f"{self._count} stages don't fit its mesh together"
        )

    def _dissolve(self, row: Row, now: float) -> None:
        """End a row: its leases alone are void."""
        self._lease_book.abandon(row, now)
        self._table.remove(row)

    # ---- what rows can do ----

    def complete(self, row: Row) -> None:
        """Introduce the workers of a row to each other, once all are ready and have the whole layout."""
        if not row.complete and self._fits_together(row):
            self._introduce(row)
        row.refresh()

    def _fits_together(self, row: Row) -> bool:
        incomplete = find_gaps(self._count, row.seats) or count_avoided(row.seats, self._avoided)
        if incomplete or not all(each.able for each in row.workers):
            return False
        self._mismatch = self._built.check_cover([seat.worker for seat in row.seats])
        return self._mismatch is None

    def _introduce(self, row: Row) -> None:
        """Tell the workers of a row of each other."""
        row.complete = self._was_complete = True
        order = pb.Row(job=self._report.job.id, row=row.id)
        for seat, worker in zip(row.seats, row.workers, strict=True):
            order.seats.add(
                name=worker.name,
                incarnation=worker.incarnation,
                address=worker.pipeline_address,
                first_stage=seat.stages.first,
                stages=seat.stages.count,
            )
        self._table.send(row.session, order)
        if all(pair.is_telling for pair in self._broken_links.find(row.seats)):
            placed = zip(row.seats, row.names, strict=True)
            seats = ", ".join(f"{seat.stages} on {name}" for seat, name in placed)
            self._report.note("member", f"row {row_number(row.id)} is ready: {seats}")

    # ---- stages that don't fit, and links that break ----

    def note_too_large(self, member: Member, failure: pb.Failure, now: float) -> Refusal | None:
        """Give a worker fewer stages, since those that it was told don't fit; return why it can have none at all."""
        ordered = self._built.ordered(member.session)
        if ordered != StageRun(failure.first_stage, failure.stages):
            return None  # it has been told to build others since
        if ordered.count == 1:
            return Refusal(failure.reason)
        self._built.forget(member.session)
        member.building_since_seconds = member.fetch = None
        self._most_stages[member.session] = ordered.count - 1
        text = f"{ordered} do not fit worker {member.name}, it gets fewer: {failure.reason}"
        self._report.note("member", text)
        self.settle(now)
        return None

    def note_broken_link(self, row: Row, member: Member, failure: pb.Failure, now: float) -> bool:
        """Form a row again with a broken link; return False if the failure names no neighbour."""
        named = zip(row.seats, row.names, strict=True)
        blamed = next((seat for seat, name in named if name == failure.neighbour), None)
        pair = {member.session, blamed.worker if blamed is not None else None}
        link = next((each for each in links_of(row.seats) if each.pair == pair), None)
        if blamed is None or link is None:
            return False
        broken = f"worker {member.name} can't exchange arrays with worker {failure.neighbour}"
        reason = printable(f"{broken}: {failure.reason}")
        if self._broken_links.note(link, reason, now).is_telling:
            self._report.note("member", reason)
        self._form_without(row, blamed, now)
        return True

    def note_links_work(self, row: Row) -> None:
        """Forget failures of a row's links and workers, and that it was late: a whole lease has passed them."""
        self._departed.forget(row.names)
        self._broken_links.note_works(row.seats)
        for seat in row.seats:
            self._late_rows.pop(seat.worker, None)

    def replace_late(self, version: Version | None, now: float) -> None:
        """Replace a worker whose device hangs, or of a row that takes too long, by a spare.

        Without a spare, a row that is alone is formed without one of its workers, if the others can share its stages.
        Else other rows take over the work of a late one. `version` is that of the newest weights.
        """
        rows, has_spare = list(self._table), self._has_spare()
        if not has_spare and len(rows) != 1:
            return
        late = self._lease_book.find_late(now)
        for row in rows:
            hanging = next((seat for seat in row.seats if self._workers[seat.worker].hangs), None)
            if hanging is not None and has_spare:
                self._replace(row, hanging, "has a worker whose device hangs", now)
                return
            suspects = self._find_lagging(row, version, now)
            if not suspects and (row.session in late or row.stalled):
                suspects = self._find_suspects(row)
            for seat in suspects:
                self._late_rows[seat.worker] = self._late_rows.get(seat.worker, 0) + 1
            if suspects:
                blamed = min(suspects, key=self._trial_order)
                self._replace(row, blamed, "takes too long over a lease", now)
                return

    def _find_lagging(self, row: Row, version: Version | None, now: float) -> list[Seat]:
        """Return the workers of a row that do not load weights which others of it have had for long."""
        lagging = [seat for seat in row.seats if self._workers[seat.worker].loaded_version != version]
        if version is None or not row.able or len(lagging) == len(row.seats):
            lagging = []
        if lagging != row.lagging:
            row.lagging, row.lagging_since_seconds = lagging, now
        return lagging if now - row.lagging_since_seconds > self._timeouts.stall else []

    def _find_suspects(self, row: Row) -> list[Seat]:
        """Return the workers that may be why a row is late.

        If one of them computes, the row is slow and does not hang. If all wait, something between them is lost, and any
        other row will do.
        """
        leases = row.leases.values()
        silent = [
            seat
            for seat in row.seats
            if any(seat.worker not in each.computed.keys() | each.evaluated.keys() for each in leases)
        ] or list(row.seats)
        devices = [self._workers[seat.worker].device for seat in silent]
        return [] if any(device is not None and device.is_busy for device in devices) else silent

    def _replace(self, row: Row, blamed: Seat, why: str, now: float) -> None:
        name = self._workers[blamed.worker].name
        text = f"{row.title} {why}"
        if self._has_spare():
            self._report.note("member", f"{text}; a spare replaces worker {name}")
        else:
            reason = f"{text}, perhaps because of worker {name}"
            self._report.note(
                "member", f"{reason}; it is left out for now, if the others can share its stages"
            )
            for seat in (each for each in row.seats if each != blamed):
                self._broken_links.note(Link(seat.worker, blamed.worker), reason, now, both_ways=True)
        self._form_without(row, blamed, now)

    def _trial_order(self, seat: Seat) -> tuple[int, int]:
        return -self._late_rows.get(seat.worker, 0), self._blames.get(seat.worker, 0)

    def _has_spare(self) -> bool:
        return any(each.spare and not each.spare_reason for each in self._workers.values())

    def _form_without(self, row: Row, blamed: Seat, now: float) -> None:
        """Form a row again, which voids its leases: without the blamed worker, if there is a spare."""
        former = [each.seats for each in self._table if each is not row]
        self._blames[blamed.worker] = self._blames.get(blamed.worker, 0) + 1
        left = tuple(seat for seat in row.seats if seat is not blamed) if self._has_spare() else row.seats
        self._dissolve(row, now)
        self._form([*former, left], now, replaced=blamed.worker)

    # ---- for people ----

    def describe_shortage(self, now: float) -> str | None:
        """Return what the job waits for before a row can compute; None if one can."""
        rows = list(self._table)
        ready = [self._broken_links.find(row.seats) for row in rows if row.able]
        if ready:
            return f"tries again after: {ready[0][0].reason}" if all(ready) else None
        gathering = self._gathering.describe(now)
        if gathering is not None:
            return gathering
        gaps = find_gaps(self._count, rows[0].seats) if rows else [StageRun(0, self._count)]
        if gaps:
            reasons = self._describe_others()
            lacking = ", ".join(map(str, gaps))
            left_seconds = self._shares_from_seconds - now
            shared = (
                f"; the others share them in {left_seconds:.0f} s"
                if self._present and left_seconds > 0
                else ""
            )
            return f"waits for a worker for {lacking} of {self._count}{f' ({reasons})' if reasons else ''}{shared}"
        broken = self._broken_links.find(rows[0].seats)
        if broken and count_avoided(rows[0].seats, self._avoided):
            return f"tries again in {max(0.0, broken[0].until_seconds - now):.0f} s after: {broken[0].reason}"
        if all(each.able for each in rows[0].workers) and self._mismatch is not None:
            return f"waits for workers that fit together: {self._mismatch}"
        building = [
            f"{worker.name} ({seat.stages}, {worker.describe()})"
            for seat, worker in zip(rows[0].seats, rows[0].workers, strict=True)
            if not worker.able
        ]
        return f"waits for workers to build their stages: {', '.join(building)}"

    def _describe_others(self) -> str:
        """Return why workers take none of the stages that a row lacks."""
        reasons = []
        for each in self._workers.values():
            most = self._most_stages.get(each.session)
            if not self._may_take(each):
                reasons.append(f"{each.name}: {each.describe()}")
            elif each.spare_reason:
                reasons.append(f"{each.name}: {each.spare_reason}")
            elif most is not None:
                reasons.append(f"at most {most} fit {each.name}")
        return printable("; ".join(reasons), REASONS_CHARACTERS)
