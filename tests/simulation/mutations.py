"""Mutations of the cores, some of which were real bugs. Seeds of the simulation must detect each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aggregator.core import worker_reports
from aggregator.core.aggregator import AggregatorCore
from aggregator.core.assignments import Assignments
from aggregator.core.events import CloseWorker, Submitted
from aggregator.core.job_report import CommittedStep, JobReport
from aggregator.core.membership.devices import Device
from aggregator.core.membership.exclusions import Exclusions
from aggregator.core.membership.job_members import JobMembers
from aggregator.core.membership.quorum import Quorum
from aggregator.core.progress import JobProgress
from aggregator.core.rows.broken_links import BrokenLinks
from aggregator.core.rows.former import RowFormer
from aggregator.core.rows.job_rows import JobRows
from aggregator.core.rows.pipeline_rows import PipelineRows
from aggregator.core.running_job import RunningJob
from aggregator.core.sums.coverage import Coverage
from aggregator.core.sums.piece_book import PieceBook
from aggregator.core.sums.step_sum import StepSum
from aggregator.core.verification.check import Check
from aggregator.core.verification.step_checks import StepChecks
from optimizer.core.events import SaveGeneration, Snapshot
from optimizer.core.job_core import JobCore
from optimizer.core.open_job import OpenJob, StagedSums
from optimizer.core.optimizer import OptimizerCore
from plane.bookkeeping import PlaneCore
from protos import cluster_pb2 as pb
from services.protocol import hello
from services.protocol.versions import Version
from tests.simulation import disk
from worker.core.events import NodeReady
from worker.core.job import JoinedJob
from worker.core.lanes import ReceivingLane
from worker.core.worker import WorkerCore


def counts_duplicates(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Coverage, "covers", lambda self, node, chunk: False)


def forgets_orphans(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepSum, "abandon", lambda self, session, now: None)


def takes_chunks_of_void_leases(patch: pytest.MonkeyPatch) -> None:
    def pieces_arrived(self: RunningJob, member: Any, event: Any, now: float) -> None:
        self.router.keep_pieces(event.header, event.pieces, event.arrival)
        step_sum = self.lease_book.step_sum
        if step_sum is not None and step_sum.assignments:
            chunks = [piece.chunk for piece in event.pieces]
            self.router.route_gradient(step_sum, step_sum.assignments[0], chunks, self.progress.elements)

    patch.setattr(RunningJob, "pieces_arrived", pieces_arrived)


def ignores_lost_optimizer_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepSum, "reopen", lambda self, chunks: [])


def drops_a_commit_while_evaluating(patch: pytest.MonkeyPatch) -> None:
    advance = JobProgress.advance
    patch.setattr(
        JobProgress,
        "advance",
        lambda self, now: advance(self, now) if self._lease_book.step_sum is not None else None,
    )
    # The aggregator must also not know what its predecessor evaluated.
    record_evaluation = JobReport.record_evaluation

    def noted(self: Any, version: Version, loss: float, now: float) -> None:
        self.known = version.step
        record_evaluation(self, version, loss, now)

    patch.setattr(JobReport, "record_evaluation", noted)
    patch.setattr(JobReport, "evaluated_step", property(lambda self: getattr(self, "known", None)))


def sends_weights_before_they_arrive(patch: pytest.MonkeyPatch) -> None:
    weights_ready = PlaneCore.weights_ready

    def one_more(self: PlaneCore, job: str, version: Version, chunks: int) -> bool:
        return weights_ready(self, job, version, chunks + chunks % 2)

    patch.setattr(PlaneCore, "weights_ready", one_more)


def stages_stale_chunks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OptimizerCore, "check_chunk", lambda self, header: None)
    patch.setattr(JobCore, "check_chunk", lambda self, header: None)


def commits_twice(patch: pytest.MonkeyPatch) -> None:
    commit = JobCore._commit

    def twice(self: JobCore, job: OpenJob, norm: float) -> None:
        commit(self, job, norm)
        if job.step % 50 == 0:
            job.step -= 1
            commit(self, job, norm)

    patch.setattr(JobCore, "_commit", twice)


def commits_before_all_chunks_are_staged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StagedSums, "take", lambda self, chunks: [1.0] if self._reports else None)


def keeps_the_generation(patch: pytest.MonkeyPatch) -> None:
    handle = OptimizerCore.handle

    def kept(self: OptimizerCore, event: Any) -> list[Any]:
        effects = handle(self, event)
        for effect in effects:
            if isinstance(effect, SaveGeneration) and (opened := self.opened(effect.job)) is not None:
                opened.generation = 1
        return [effect for effect in effects if not isinstance(effect, SaveGeneration)]

    patch.setattr(OptimizerCore, "handle", kept)


def reports_checkpoints_too_early(patch: pytest.MonkeyPatch) -> None:
    handle = OptimizerCore.handle

    def early(self: OptimizerCore, event: Any) -> list[Any]:
        effects = handle(self, event)
        for effect in list(effects):
            if isinstance(effect, Snapshot) and effect.step:
                written = pb.CheckpointWritten(job=effect.job, generation=effect.generation, step=effect.step)
                self._out.send(written)
        return effects + self._out.take()

    patch.setattr(OptimizerCore, "handle", early)


def keeps_leases_when_weights_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerCore, "_drop_leases_before", lambda self, version: None)


def takes_older_weights(patch: pytest.MonkeyPatch) -> None:
    receive = WorkerCore._receive_weights

    def taken(self: WorkerCore, header: Any) -> None:
        if self.job is not None and (header.generation, header.step) < (self.job.receiving or (0, 0)):
            self.job.receiving = None
        receive(self, header)

    patch.setattr(WorkerCore, "_receive_weights", taken)


def reports_weights_that_are_still_loading(patch: pytest.MonkeyPatch) -> None:
    receive = WorkerCore._receive_weights

    def early(self: WorkerCore, header: Any) -> None:
        receive(self, header)
        if self.job is not None and self.job.received and self.job.loaded is None:
            self.job.loaded = self.job.receiving
            self._send(pb.WeightsLoaded(job=header.job, generation=header.generation, step=header.step))

    patch.setattr(WorkerCore, "_receive_weights", early)


def begins_leases_before_their_weights(patch: pytest.MonkeyPatch) -> None:
    leased = WorkerCore._accept_lease

    def begun(self: WorkerCore, lease: pb.Lease) -> None:
        leased(self, lease)
        held = self.leases.get(lease.lease)
        if held is not None and not held.begun:
            self._begin(held)

    patch.setattr(WorkerCore, "_accept_lease", begun)


def forgets_leases_without_weights(patch: pytest.MonkeyPatch) -> None:
    leased = WorkerCore._accept_lease

    def received(self: WorkerCore, lease: pb.Lease) -> None:
        if self.job is not None and self.job.receiving in (None, (lease.generation, lease.step)):
            leased(self, lease)

    patch.setattr(WorkerCore, "_accept_lease", received)


def sends_sums_before_they_are_computed(patch: pytest.MonkeyPatch) -> None:
    note_ready = WorkerCore._note_ready

    def note_all(self: WorkerCore, event: NodeReady) -> None:
        note_ready(self, replace(event, first_element=0))

    patch.setattr(WorkerCore, "_note_ready", note_all)


def never_notices_silence(patch: pytest.MonkeyPatch) -> None:
    ticked = AggregatorCore._ticked

    def deaf(self: AggregatorCore, now: float) -> None:
        for member in self.members.values():
            member.heard_seconds = now
        ticked(self, now)

    patch.setattr(AggregatorCore, "_ticked", deaf)


def leaves_leases_with_silent_workers(patch: pytest.MonkeyPatch) -> None:
    close = AggregatorCore._close

    def closed(self: AggregatorCore, member: Any, reason: str, now: float) -> None:
        if not reason.startswith("silent"):
            close(self, member, reason, now)
            return
        self._out.put(CloseWorker(member.session, reason))
        member.heard_seconds = 1e9

    patch.setattr(AggregatorCore, "_close", closed)


def reports_a_step_twice(patch: pytest.MonkeyPatch) -> None:
    note_commit = JobReport.note_commit

    def note_commit_again(self: JobReport, commit: Any, version: Any, wire: Any) -> None:
        self._unreported[version] = CommittedStep()
        note_commit(self, commit, version, wire)

    patch.setattr(JobReport, "note_commit", note_commit_again)


def forgets_its_epoch(patch: pytest.MonkeyPatch) -> None:
    made = OptimizerCore.__init__
    patch.setattr(OptimizerCore, "__init__", lambda self, *, name, epoch: made(self, name=name))


def grants_work_below_the_quorum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quorum, "is_reached", lambda self, now: True)


def keeps_leases_that_failed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(worker_reports, "note_failure", lambda run, member, failure, now: None)


def skips_a_step_that_must_stop_the_job(patch: pytest.MonkeyPatch) -> None:
    commit = JobCore._commit

    def skipped(self: JobCore, job: OpenJob, norm: float) -> None:
        job.plan = replace(job.plan, on_non_finite="skip")
        commit(self, job, norm)

    patch.setattr(JobCore, "_commit", skipped)


def hides_the_non_finite_micro_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepSum, "non_finite", ())


def commits_before_all_checks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepChecks, "closed", property(lambda self: True))


def keeps_sums_of_liars(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Exclusions, "is_void", lambda self, version: False)
    patch.setattr(RunningJob, "start_over", lambda self, version: self.progress.next_phase(0.0))


def trusts_two_lies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Check,
        "add",
        lambda self, answer: not self.answers.append(self.answers[0] if self.answers else answer),
    )


def keeps_the_epoch_of_a_backup(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk, "raise_restored_epoch", lambda backup, replaced, chance: backup)


def skips_the_same_epochs_at_each_restore(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk, "raise_restored_epoch", lambda backup, replaced, chance: max(backup, replaced) + 256)


def never_tells_the_epoch_to_exceed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hello, "_near", lambda obeyed, own: 0)


def opens_jobs_under_the_generation_on_record(patch: pytest.MonkeyPatch) -> None:
    after = JobCore._generation_after
    patch.setattr(JobCore, "_generation_after", lambda self, generation: after(self, self._least_generation))


def never_resumes_after_a_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Assignments, "end_check", lambda self: None)


def starts_jobs_during_a_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Assignments, "begin_check", lambda self, sessions: None)


def forgets_jobs_submitted_during_a_check(patch: pytest.MonkeyPatch) -> None:
    handle = AggregatorCore.handle

    def handled(self: AggregatorCore, event: Any, clock: Any) -> list[Any]:
        forgets = self.assignments._checked and isinstance(event, Submitted)
        return [] if forgets else handle(self, event, clock)

    patch.setattr(AggregatorCore, "handle", handled)


def drops_a_piece(patch: pytest.MonkeyPatch) -> None:
    add = PieceBook.add
    patch.setattr(
        PieceBook, "add", lambda self, lease, piece: add(self, lease, piece) and piece.elements % 7 > 0
    )


def puts_chunks_together_without_all_pieces(patch: pytest.MonkeyPatch) -> None:
    def take(self: PieceBook, lease: int, chunk: int, elements: int) -> bool:
        return self._kept.get(lease, {}).pop(chunk, None) is not None

    patch.setattr(PieceBook, "take", take)


def counts_chunk_0_before_all_reports(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PipelineRows, "_is_computed", lambda self, member, lease: True)


def joins_losses_before_all_reports(patch: pytest.MonkeyPatch) -> None:
    def evaluated(self: JobRows, member: Any, evaluated: pb.Evaluated) -> Any:
        found = self._find_lease(member, evaluated.lease)
        return None if found is None else (found[0], list(evaluated.losses))

    patch.setattr(JobRows, "evaluated", evaluated)


def keeps_leases_of_lost_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RowFormer, "_dissolve", lambda self, row, now: self._table.remove(row))


def accepts_activations_of_other_leases(patch: pytest.MonkeyPatch) -> None:
    def take(self: ReceivingLane[Any], lease: int) -> Any:
        if not self._waiting:
            return None
        self.taken += 1
        return self._waiting.popleft()[1]

    patch.setattr(ReceivingLane, "take", take)
    patch.setattr(ReceivingLane, "drop", lambda self, lease: None)


def performs_leases_again(patch: pytest.MonkeyPatch) -> None:
    ignored = property(lambda self: 0, lambda self, lease: None)
    patch.setattr(JoinedJob, "newest_lease", ignored, raising=False)


def names_workers_that_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Device, "is_busy", property(lambda self: bool(self.task)))


def names_no_hanging_device(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JobMembers, "mark_hangs", lambda self, most_seconds: None)


def believes_that_devices_get_on(patch: pytest.MonkeyPatch) -> None:
    read = Device.read
    patch.setattr(
        Device, "read", lambda heartbeat: replace(read(heartbeat) or Device(0, 0.0, ""), seconds=0.0)
    )


HANG_MUTATIONS: list[Callable[[pytest.MonkeyPatch], None]] = [
    names_workers_that_wait,
    names_no_hanging_device,
    believes_that_devices_get_on,
]


def tries_broken_links_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BrokenLinks, "avoided", lambda self, now: frozenset())


MUTATIONS: list[Callable[[pytest.MonkeyPatch], None]] = [
    counts_duplicates,
    forgets_orphans,
    takes_chunks_of_void_leases,
    ignores_lost_optimizer_state,
    drops_a_commit_while_evaluating,
    sends_weights_before_they_arrive,
    stages_stale_chunks,
    commits_twice,
    commits_before_all_chunks_are_staged,
    keeps_the_generation,
    reports_checkpoints_too_early,
    keeps_leases_when_weights_change,
    takes_older_weights,
    reports_weights_that_are_still_loading,
    begins_leases_before_their_weights,
    forgets_leases_without_weights,
    sends_sums_before_they_are_computed,
    never_notices_silence,
    leaves_leases_with_silent_workers,
    reports_a_step_twice,
    forgets_its_epoch,
    grants_work_below_the_quorum,
    keeps_leases_that_failed,
    hides_the_non_finite_micro_batch,
]

LIE_MUTATIONS: list[Callable[[pytest.MonkeyPatch], None]] = [
    commits_before_all_checks,
    keeps_sums_of_liars,
    trusts_two_lies,
]

RESTORE_MUTATIONS: list[Callable[[pytest.MonkeyPatch], None]] = [
    keeps_the_epoch_of_a_backup,
    skips_the_same_epochs_at_each_restore,
    never_tells_the_epoch_to_exceed,
    opens_jobs_under_the_generation_on_record,
]

CHECK_MUTATIONS: list[Callable[[pytest.MonkeyPatch], None]] = [
    never_resumes_after_a_check,
    starts_jobs_during_a_check,
    forgets_jobs_submitted_during_a_check,
]

SPLIT_MUTATIONS: list[Callable[[pytest.MonkeyPatch], None]] = [
    drops_a_piece,
    puts_chunks_together_without_all_pieces,
    counts_chunk_0_before_all_reports,
    joins_losses_before_all_reports,
    keeps_leases_of_lost_rows,
    accepts_activations_of_other_leases,
    performs_leases_again,
]

FAULTS_THAT_SHOW: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, ...]] = {
    leaves_leases_with_silent_workers: ("silence", "worker"),
}
"""Faults that reveal a mutation soon. With all kinds of faults it would take a hundred seeds."""
