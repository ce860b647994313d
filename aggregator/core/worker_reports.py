"""What the workers of a running job report, and what it does with it."""

from __future__ import annotations

from aggregator.core.membership.members import Member
from aggregator.core.running_job import RunningJob
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED
from protos.tensors_pb2 import GRADIENT, ChunkHeader
from services.errors import Refusal
from services.protocol.envelope import WorkerBody
from services.protocol.versions import Version


def take_report(run: RunningJob, member: Member, body: WorkerBody, now: float) -> None:
    """Take a worker's message about a running job.

    Args:
        run: the job's run.
        member: the worker, which takes part in it.
        body: the message.
        now: the time, on the monotonic clock.
    """
    match body:
        case pb.Ready():
            run.admit(member, body, now)
        case pb.WeightsLoaded():
            _note_weights_loaded(run, member, body, now)
        case pb.Computed():
            _note_computed(run, member, body, now)
        case pb.Evaluated():
            _note_evaluated(run, member, body, now)
        case pb.Description():
            _note_description(run, member, body, now)
        case pb.Fetching():
            run.job_members.note_fetching(member, body, now)
        case pb.Printed():
            run.printed.take(member, body, now)
        case pb.Failure():
            note_failure(run, member, body, now)


def _note_weights_loaded(run: RunningJob, member: Member, loaded: pb.WeightsLoaded, now: float) -> None:
    """Record the version whose complete weights are on a worker's mesh, unless it has yet to build the job."""
    if not member.ready:
        return
    row = run.rows.weights_loaded(member, Version(loaded.generation, loaded.step))
    if row is not None:
        run.lease_results.record_weights_loaded(row, now)
    run.dispatch(now)


def _note_computed(run: RunningJob, member: Member, computed: pb.Computed, now: float) -> None:
    """Record that a worker has computed a lease, whose chunks are on the way, or a check."""
    refusal = run.rows.check_findings(member, computed)
    if refusal is not None:
        run.refuse(member, refusal, now)
        return
    found = run.rows.computed(member, computed)
    if found is None:
        return
    row, reports = found
    if not run.lease_results.record_computed(row, computed.lease, reports, now):
        return
    first = ChunkHeader(
        job=computed.job,
        generation=computed.generation,
        step=computed.step,
        lease=computed.lease,
        kind=GRADIENT,
        index=0,
    )
    run.route_whole(row, first, [0], in_place=row.in_place)  # it may have waited for this report
    run.dispatch(now)


def _note_evaluated(run: RunningJob, member: Member, evaluated: pb.Evaluated, now: float) -> None:
    """Record a worker's losses of a lease, and the validation loss if they are the last ones."""
    found, version = run.rows.evaluated(member, evaluated), run.progress.version
    if found is None:
        return
    row, losses = found
    evaluation = run.lease_results.record_losses(row, evaluated, losses, version)
    if evaluation is None or version is None:
        return
    run.report.note_evaluated(evaluation.evaluated, evaluation.batches, now)
    if evaluation.complete:
        run.report.record_evaluation(version, evaluation.loss, now)
        run.progress.next_phase(now)
    if not run.ended:
        run.dispatch(now)


def _note_description(run: RunningJob, member: Member, description: pb.Description, now: float) -> None:
    """Pass the layout from the worker that makes the initial weights on to the optimizer."""
    row = run.rows.find_described(member)
    current = None if row is None else run.lease_book.find_initialisation(row.session, description.lease)
    if current is not None:
        current.described = True
        run.initialise(member, description, now)


def note_failure(run: RunningJob, member: Member, failure: pb.Failure, now: float) -> None:
    """Go on without what a worker can't do: the job, for good or for now, its stages together, or a lease."""
    if failure.retries:
        run.set_unfit(member, Refusal(failure.reason), now)
    elif failure.died:
        _note_death(run, member, failure, now)
    elif failure.lease:
        _note_failed_lease(run, member, failure, now)
    else:
        fault = Refusal(failure.reason)
        refusal = run.rows.note_too_large(member, failure, now) if failure.too_large else fault
        if refusal is not None:
            run.refuse(member, refusal, now)
    if not run.ended:
        run.dispatch(now)


def _note_failed_lease(run: RunningJob, member: Member, failure: pb.Failure, now: float) -> None:
    """Release a failed lease; refuse its worker, or end the job, if the failures repeat."""
    row = run.rows.void_failed(member, failure, now)
    if row is None:
        return
    blame = run.lease_results.record_failure(row, member, failure, run.progress.version, now)
    if blame.job is not None:
        run.end(FAILED, blame.job)
    elif blame.worker is not None:
        run.refuse(member, blame.worker, now)


def _note_death(run: RunningJob, member: Member, failure: pb.Failure, now: float) -> None:
    """Release what a compute process had when it died; refuse its worker, or end the job, if the deaths repeat."""
    if failure.lease:
        row = run.rows.void_failed(member, failure, now)
        if row is None:
            return
        run.lease_results.release(row, failure, now)
    elif failure.build != member.builds:
        return  # it has been told to build the job again since
    blame = run.job_members.count_death(member, failure.reason)
    if blame.job is not None:
        run.end(FAILED, blame.job)
    elif blame.worker is not None:
        run.refuse(member, blame.worker, now)
    elif not failure.lease:
        run.build_again(member, now)
