"""One running job: initialise, train, evaluate, checkpoint. What is reported to it is in *_reports.py.

One training step goes like this. Workers get leases for nodes of the reduction tree of (generation, step) as soon as
its weights begin to stream to them. Their chunks are merged and passed on to the optimizer. The optimizer commits,
and its new weights are sent to every worker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from aggregator.core.events import NoticeKind, PiecesArrived, ToOptimizer
from aggregator.core.membership.claims import trust
from aggregator.core.membership.code_pin import shorten_code
from aggregator.core.membership.members import Member
from aggregator.core.rows.row import Row
from aggregator.core.started_job import StartedJob
from aggregator.core.sums.plane_orders import discard_pieces
from aggregator.core.sums.step_sum import StepSum
from aggregator.core.verification.checks import Finding
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, Exclusion
from protos.tensors_pb2 import INITIAL_WEIGHTS, ChunkHeader
from services.errors import Refusal
from services.printable import printable
from services.protocol.phases import JobPhase


class RunningJob(StartedJob):
    """What happens to a job that runs: its workers come and go, say what it is, and get leases."""

    # ---- the optimizer ----

    def initialise(self, member: Member, description: pb.Description, now: float) -> None:
        """Have the optimizer prepare for the initial weights that a worker describes, if their layout is as claimed."""
        own, layout = self.claims.own, description.layout.sha256
        if own is not None and own.layout_hash != layout:
            text = f"its Description has a layout with hash {layout[:12]}, and it said {own.layout_hash[:12]}"
            self.exclude_liars([member.name], text, now)
            return
        initialise = pb.Initialise(job=self.job.id, layout=description.layout, files=description.files)
        self.out.put(ToOptimizer(initialise))

    # ---- chunks ----

    def check_chunk(self, member: Member, header: ChunkHeader) -> Refusal | None:
        """Return why what a worker has sent of a chunk is stale; None if it is wanted."""
        row = self.rows.find(member)
        if row is None:
            return Refusal(f"the chunk's lease is {header.lease}, and this worker is a spare now")
        return self.lease_book.check_chunk(row.session, header)

    def pieces_arrived(self, member: Member, event: PiecesArrived, now: float) -> Refusal | None:
        """Keep pieces of chunks, discard stale ones; return why their worker can't send them, None if it can."""
        header, row = event.header, self.rows.find(member)
        stale = row is None or self.check_chunk(member, header) is not None
        refusal = None if stale else self.rows.check_pieces(member, header, event.pieces)
        if row is None or stale or refusal is not None:
            self.out.put(discard_pieces(header, event.arrivals))
            return refusal
        self.router.keep_pieces(header, event.pieces, event.arrival)
        chunks = dict.fromkeys(piece.chunk for piece in event.pieces)
        if 0 in chunks and self.rows.waits_for_report(member, header):
            del chunks[0]
        # Several workers of a row share one window, even if some of them are on this host.
        self.route_whole(row, header, list(chunks), in_place=event.in_place and len(row.workers) == 1)
        return None

    def route_whole(self, row: Row, header: ChunkHeader, chunks: Sequence[int], *, in_place: bool) -> None:
        """Route those chunks of a lease whose pieces are all kept.

        Args:
            row: the row that has the lease.
            header: header of a piece of the lease.
            chunks: indices of chunks, in the order in which they came.
            in_place: whether the lease's payloads stay in the worker's memory.
        """
        whole = self.router.take_whole(header.lease, chunks, self.progress.elements)
        if not whole:
            return
        if header.kind == INITIAL_WEIGHTS:
            self.router.route_initial_weights(header, whole, self.progress.elements)
            current = self.lease_book.initialisation
            if current is not None and current.missing is not None:
                for chunk in whole:
                    current.missing.discard(chunk)
            return
        step_sum, assignment = self.lease_book.accept_gradients(row, header, whole, in_place=in_place)
        self.router.route_gradient(step_sum, assignment, whole, self.progress.elements)
        if step_sum.widen():
            self.lease_book.send_windows(step_sum)

    # ---- workers ----

    def take(self, members: Collection[Member], now: float) -> None:
        """Have workers that serve no job build this one, unless they are refused."""
        for member in members:
            member.job = self.job.id
            self.members[member.session] = member
        self.rows.join(members, now)
        self._end_if_hopeless(now)

    def lets_go(self, member: Member, now: float) -> bool:
        """Return whether a worker that is to leave can: no step needs it, or its COMMIT is too long in coming.

        A step needs those that have leases of it, and while it has open checks those with weights, which may make them.
        The making of initial weights and an evaluation are left at once, since the optimizer has what they start from.
        """
        assert member.leaving_since_seconds is not None
        row, step_sum = self.rows.find(member), self.lease_book.step_sum
        if row is None or step_sum is None:
            return True
        may_check = step_sum.coverage.gated and row.receives_weights
        if not (may_check or any(each.lease for each in step_sum.of_session(row.session))):
            return True
        # A job that stops is short of workers as soon as the idle ones have left; the others finish its step.
        short = self.stops is None and self.quorum.describe_shortage(now) is not None
        if short or (step_sum.orphans() and not self.lease_book.able_rows()):
            return True  # those who stay can't finish the step
        return now >= member.leaving_since_seconds + self.timeouts.stall

    def give_back(self, members: Collection[Member], reason: str, now: float) -> None:
        """Send away workers that can be of use elsewhere, and release their leases."""
        for member in members:
            self.job_members.give_back(member, reason)
            del self.members[member.session]
        for member in members:
            self.rows.release(member, now)
            member.leave_job()
        self.settle_claims(now)
        self.dispatch(now)

    def admit(self, member: Member, ready: pb.Ready, now: float) -> None:
        """Admit a worker that has built the job, or its stages of it; or refuse the worker."""
        if not ready.build:
            text = "Ready.build is 0, expected the number of the order that it answers, as in Join.build"
            self.refuse(member, Refusal(text), now)
            return
        if not self.rows.expects(member, ready):
            return  # it has been told to build the job, or other stages, again since
        began_seconds = member.building_since_seconds
        refusal = self._check_sizes(member, ready) or self.job_members.admit(
            member, ready, leased=self._has_leased
        )
        if refusal is not None:
            self.refuse(member, refusal, now)
            return
        if member.claim_wait is not None:
            self.rows.settle(now)
            return
        self.settle_claims(now)
        if not member.ready:
            return  # the job begins again, and the worker with it
        if began_seconds is not None:
            member.build_seconds = now - began_seconds
        self.progress.learn_batches(ready, now)
        self.job_members.note_admission(member, ready)
        refusal = self.rows.note_built(member, ready, now)
        if refusal is not None:
            member.claim, member.dissents = None, True
            self.refuse(member, refusal, now)
        if not self.ended:
            self.dispatch(now)

    def _check_sizes(self, member: Member, ready: pb.Ready) -> Refusal | None:
        """Return why sizes that a worker reports are not the plan's. If those are exact, it says nothing of the job."""
        for count, said, is_read in (
            (self.plan.parameters, ready.elements, True),
            (self.plan.evaluation_batches, ready.evaluation_batches, not ready.first_stage),
        ):
            refusal = count.check(said) if said or is_read else None
            if refusal is not None:
                member.claim, member.dissents = None, not count.maximum_of
                return refusal
        return None

    @property
    def _has_leased(self) -> bool:
        """Whether the job has leased anything, also by an aggregator before this one."""
        received = (pb.OptimizerStatus.RECEIVING, pb.OptimizerStatus.TRAINING)
        return self._leased or (self.optimizer_state in received and not self.job.HasField("start"))

    def refuse(self, member: Member, refusal: Refusal, now: float) -> None:
        """Send a worker away and release its leases."""
        self.job_members.refuse(member, refusal)
        self.rows.release(member, now)
        self._end_if_hopeless(now)

    def set_unfit(self, member: Member, reason: Refusal, now: float) -> None:
        """Record that a worker can't open its mesh, or lacks an input of the job; release its leases if it had both."""
        self.job_members.mark_unfit(member, reason)
        self.rows.release(member, now)
        self._end_if_hopeless(now)

    def build_again(self, member: Member, now: float) -> None:
        """Release a worker's leases, and have it build the job once more."""
        self.job_members.lose_build(member)
        self.rows.release(member, now)
        self.rows.join([member], now)

    def _end_if_hopeless(self, now: float) -> None:
        self.settle_claims(now)  # it may let workers take part that were refused
        if self.ended:
            return
        refusal = self.job_members.check_hope(now, others=self._has_others(self.job.id))
        if refusal is not None:
            self.end(FAILED, str(refusal))

    def lost(self, member: Member, reason: str, now: float) -> None:
        """Release the leases of a worker that is gone."""
        del self.members[member.session]
        self.rows.release(member, now)
        self.report.note("member", f"worker {member.name} is gone: {reason}", NoticeKind.WORKER_LOST)
        self.settle_claims(now)
        self.dispatch(now)

    # ---- what workers say of the job ----

    def trust(self, worker: str, now: float) -> None:
        """Pin the job to what a worker says of it, as a person has decided; the record on disk says so."""
        if trust(self.job, worker) is None:
            self.refuse_excluded(now)
            self.settle_claims(now)
            self.dispatch(now)

    def exclude_liars(self, workers: Collection[str], text: str, now: float) -> None:
        """Exclude workers that have contradicted themselves; nothing of them is in any weights."""
        for worker in workers:
            reason = f"contradicts itself: {text}; the worker is excluded from this job"
            self.job.excluded.append(Exclusion(worker=worker, step=self.job.step, reason=reason))
        for member in self.members.values():
            if member.name in workers:
                member.claim, member.dissents = None, True
        self.report.save()
        self.refuse_excluded(now)

    def refuse_excluded(self, now: float) -> None:
        """Send away the workers that are excluded."""
        for member in list(self.members.values()):
            refusal = self.exclusions.find(member.name)
            takes_part = member.refusal is None or member.dissents
            if refusal not in (None, member.refusal) and takes_part and not self.ended:
                self.refuse(member, refusal, now)

    def settle_claims(self, now: float) -> None:
        """Begin the job again if its weights are void, and ask workers again whose claims get another answer now."""
        taking_part = [
            each
            for each in self.members.values()
            if each.refusal is None
            or (each.dissents and each.claim is not None and self.exclusions.find(each.name) is None)
        ]
        self.claims.settle({each.name for each in taking_part}, now)
        if self.job.void_generation > self.opened_void_generation:
            self._begin_again(taking_part, now)
            return
        while not self.ended and (member := self._find_outdated()) is not None:
            claim_wait, member.claim_wait = member.claim_wait, None
            if claim_wait is not None:
                self.admit(member, claim_wait.ready, now)
            else:
                self.rows.join([member], now)

    def _find_outdated(self) -> Member | None:
        """Return a worker whose claim would get another answer now than the one that it got; None if there is none."""
        for each in self.members.values():
            waits = each.claim_wait is not None
            if each.claim is None or not (each.ready or each.dissents or waits):
                continue
            if self.claims.is_outdated(each.claim, ready=each.ready, waits=waits):
                return each
        return None

    def _begin_again(self, members: Iterable[Member], now: float) -> None:
        """Have the optimizer forget all weights that workers have made, and the workers report again what they have."""
        claimants = self.claims.own.claimants if self.claims.own is not None else ()
        who = printable(", ".join(each.worker for each in claimants), 60)
        self.report.note("state", f"begins again with what worker {who} says of it")
        self.admission.layout_hash = ""
        self.lease_book.end_initialisation()
        self.progress.forget_batches()
        self.open()
        self.rows.join(members, now)

    # ---- granting leases ----

    def dispatch(self, now: float) -> None:
        """Grant every lease that can be granted now."""
        has_stopped = self.stops is not None and not self.members
        if has_stopped or self.claims.contended is not None:
            return
        if self.progress.phase is not JobPhase.CHECKPOINT and not self.quorum.is_reached(now):
            if self.stops is not None and self.lease_book.step_sum is not None:
                self._verify(
                    self.lease_book.step_sum, now
                )  # a job that stops is short of workers; it ends its step
            return
        if self.progress.version is None:
            if self.optimizer_state in (pb.OptimizerStatus.EMPTY, pb.OptimizerStatus.RECEIVING):
                self.lease_book.grant_initialisation(now)
        elif self.lease_book.step_sum is not None:
            self.lease_book.grant_assignments(self.lease_book.step_sum, now)
            self._verify(self.lease_book.step_sum, now)
        elif self.lease_book.evaluation is not None:
            self.lease_book.grant_evaluation(self.lease_book.evaluation, self.progress.version, now)

    def tick(self, now: float) -> None:
        """Take back leases that are late, and grant what can be granted."""
        self._take_back_idle_start(now)
        self.report.publish_refusals()
        self.printed.tick(now)
        self.job_members.mark_slow_builds(now, self.timeouts.stall)
        self.job_members.mark_hangs(self.timeouts.stall)
        self.rows.settle(now)
        self._end_if_hopeless(now)
        if self.ended:
            return
        code = self.code_pin.find_due_change(now) if self.claims.contended is None else None
        if code is not None:
            self._change_code(code, now)
        self.lease_book.release_late(self.progress.version, now)
        self.dispatch(now)

    # ---- a rolling upgrade ----

    def _change_code(self, code: str, now: float) -> None:
        """Pin the job to the code of workers that wait, from its newest checkpoint on."""
        unsaved = self.progress.version is not None and not self.job.checkpoint
        if unsaved or self.progress.phase is JobPhase.CHECKPOINT:
            return  # the optimizer is about to write a checkpoint, and needs no worker for it
        change = self.code_pin.change(self.admission.code, code)
        waiting = [each for each in self.members.values() if each.claim_wait is not None]
        self.claims.change_code(code)
        self.report.save()
        codes = f"{shorten_code(change.before)} -> {shorten_code(change.after)}"
        where = f"step {change.step}, generations after {change.generation}"
        self.report.note("state", f"{where}: code {codes}, since no worker of the code before is left")
        if self.progress.version is not None:
            self.progress.forget_weights()
            self.open()
        for member in waiting:
            claim_wait, member.claim_wait = member.claim_wait, None
            if claim_wait is not None and not self.ended:
                self.admit(member, claim_wait.ready, now)

    # ---- verification ----

    def _verify(self, step_sum: StepSum, now: float) -> None:
        """Advance the step's checks; pass on the last chunk of its sum once all are closed."""
        if not step_sum.coverage.gated:
            return
        able = self.lease_book.able_rows(leaving=True)
        receivers = [each for each in able if each.receives_weights]
        finding = self.lease_book.checks.advance(step_sum, receivers, now)
        if finding is not None:
            self._exclude(finding, now)
        elif step_sum.checks.closed:
            self.router.open_gate(step_sum, self.progress.elements)

    def _exclude(self, finding: Finding, now: float) -> None:
        """Exclude faulty workers and drop the step's sum, which may contain what they computed."""
        assert self.progress.version is not None
        self.lease_book.step_sum = None
        self.router.drop_all()
        self.exclusions.add(finding, self.progress.version)
        self.report.save()
        self.found_faulty += sorted(finding.workers)
        self.refuse_excluded(now)
        if not self.ended:
            self.start_over(self.progress.version)
