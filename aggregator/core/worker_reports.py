"""What the workers of the running job report, and what it does with it."""

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
    """Take a worker's message about the running job.

    Args:
        run: the running job.
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
        case pb.Failure():
            note_failure(run, member, body, now)


def _note_weights_loaded(run: RunningJob, member: Member, loaded: pb.WeightsLoaded, now: float) -> None:
    """Record the version whose complete weights are on a worker's mesh."""
    found = run.holders.weights_loaded(member, Version(loaded.generation, loaded.step))
    if found is not None:
        run.lease_results.record_weights_loaded(*found, now)
    run.dispatch(now)


def _note_computed(run: RunningJob, member: Member, computed: pb.Computed, now: float) -> None:
    """Record that a worker has computed a lease, whose chunks are on the way, or a check."""
    found = run.holders.computed(member, computed)
    if found is None or not run.lease_results.record_computed(*found, now):
        return
    holder, joined, _ = found
    first = ChunkHeader(
        job=joined.job,
        generation=joined.generation,
        step=joined.step,
        lease=joined.lease,
        kind=GRADIENT,
        index=0,
    )
    run.route_if_whole(holder, first)  # it may have waited for this report
    run.dispatch(now)


def _note_evaluated(run: RunningJob, member: Member, evaluated: pb.Evaluated, now: float) -> None:
    """Record a worker's losses of a lease, and the validation loss if they are the last ones."""
    found, version = run.holders.evaluated(member, evaluated), run.progress.version
    evaluation = None if found is None else run.lease_results.record_losses(*found, version)
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
    holder = run.holders.find_described(member)
    lease = description.lease
    current = None if holder is None else run.lease_book.find_initialisation(holder.session, lease)
    if current is not None:
        current.described = True
        run.initialise(member, description, now)


def note_failure(run: RunningJob, member: Member, failure: pb.Failure, now: float) -> None:
    """Go on without what a worker can't do: the job, for good or for now, its stages together, or a lease."""
    if failure.retries:
        run.set_unfit(member, Refusal(failure.reason), now)
    elif failure.lease:
        _note_failed_lease(run, member, failure, now)
    else:
        fault = Refusal(failure.reason)
        refusal = run.holders.note_too_large(member, failure, now) if failure.too_large else fault
        if refusal is not None:
            run.refuse(member, refusal, now)
    if not run.ended:
        run.dispatch(now)


def _note_failed_lease(run: RunningJob, member: Member, failure: pb.Failure, now: float) -> None:
    """Release a failed lease; refuse its worker, or end the job, if the failures repeat."""
    holder = run.holders.void_failed(member, failure, now)
    if holder is None:
        return
    blame = run.lease_results.record_failure(holder, member, failure, run.progress.version, now)
    if blame.job is not None:
        run.end(FAILED, blame.job)
    elif blame.worker is not None:
        run.refuse(member, blame.worker, now)
