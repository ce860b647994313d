"""What the optimizer reports of a running job, and what it does with it."""

from __future__ import annotations

from aggregator.core.membership.claims import void_weights
from aggregator.core.running_job import RunningJob
from aggregator.core.status_check import check_status
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED
from protos.tensors_pb2 import WEIGHTS, ChunkHeader
from services.protocol.envelope import OptimizerBody
from services.protocol.versions import Version
from services.tensors.chunk_set import ChunkSet


def take_report(run: RunningJob, optimizer: str, body: OptimizerBody, now: float) -> None:
    """Take the optimizer's message about a running job.

    Args:
        run: the job's run.
        optimizer: name of the optimizer.
        body: the message.
        now: the time, on the monotonic clock.
    """
    match body:
        case pb.OptimizerStatus():
            _note_status(run, body, now)
        case pb.Commit():
            _note_commit(run, body, now)
        case pb.CheckpointWritten():
            run.progress.checkpoint_written(body)
        case pb.CheckpointMissed():
            _note_missed_checkpoint(run, body)
        case pb.Failure():
            run.end(FAILED, f"optimizer {optimizer}: {body.reason}")


def _note_status(run: RunningJob, status: pb.OptimizerStatus, now: float) -> None:
    """Continue at the version that the optimizer reports."""
    if run.opened_void_generation and status.generation <= run.opened_void_generation:
        return  # the answer to its last Open, which says what is void, has a later generation
    if run.lacks_space:
        run.lacks_space, run.job.detail = False, ""
    run.optimizer_state = status.state
    if status.state != pb.OptimizerStatus.TRAINING and status.generation > run.job.generation:
        run.job.generation = status.generation  # so that what is made in it can be declared void
        run.report.save()
    if status.state == pb.OptimizerStatus.EMPTY:
        run.progress.forget_weights()
        run.lease_book.end_initialisation()
        run.admission.layout_hash = ""
        run.dispatch(now)
        return
    version = Version(status.generation, status.step)
    if (
        status.state == pb.OptimizerStatus.TRAINING
        and run.progress.version is not None
        and version < run.progress.version
    ):
        return  # stale: newer weights have already come on the data stream
    run.note_status(version)
    known = run.progress.elements if run.admission.layout_hash else 0
    unusable = check_status(status, run.plan, known)
    if unusable is not None:
        run.end(FAILED, str(unusable))
        return
    if not _check_own_layout(run, status, now) or run.ended:
        return
    run.progress.learn_layout(status.elements)
    if status.state == pb.OptimizerStatus.RECEIVING:
        run.progress.forget_weights()
        current = run.lease_book.initialisation
        if current is not None and current.described:
            current.missing = ChunkSet.from_ranges(status.missing, run.progress.chunks)
            current.since_seconds = now
            run.orders.resend(current.session, current.lease, status.missing)
    else:
        missing = ChunkSet.from_ranges(status.missing, run.progress.chunks)
        # The checks of a sum that a previous aggregator began are unknown: it may contain wrong gradients.
        unchecked = version != run.progress.version and bool(run.plan.verify_fraction)
        partial = 0 < len(missing) < run.progress.chunks
        if run.is_void(version) or (unchecked and partial):
            run.start_over(version)
        else:
            run.progress.continue_at(version, missing, now)
    if not run.ended:
        run.dispatch(now)


def _check_own_layout(run: RunningJob, status: pb.OptimizerStatus, now: float) -> bool:
    """Compare the job's own claim with the layout that the optimizer has; return whether the job goes on with that.

    The weights of another job, which this one starts from, count whatever workers say. So do weights with a COMMIT
    that the record knows nothing of, since the queue was restored. Others were made under a claim, which may have
    ended since.
    """
    own, admission, starts_from = run.claims.own, run.admission, run.job.HasField("start")
    agrees = own is not None and own.layout_hash == status.layout_hash
    has_commit = status.step > run.job.start.first_step
    admission.layout_hash = status.layout_hash
    admission.layout_counts = starts_from or (has_commit and not agrees)
    if admission.layout_counts:
        if run.claims.disprove(status.layout_hash):
            run.report.save()
        for member in list(run.members.values()):
            refusal = admission.check_layout(member.claim) if member.ready and member.claim else None
            if refusal is not None and not run.ended:
                run.refuse(member, refusal, now)
        return True
    if own is None or has_commit or (agrees and own.elements == status.elements):
        return True
    if agrees:
        text = f"its layout has {status.elements} elements, and it said {own.elements}"
        run.exclude_liars([each.worker for each in own.claimants], text, now)
    void_weights(run.job)
    run.report.save()
    run.settle_claims(now)
    return False


def _note_missed_checkpoint(run: RunningJob, missed: pb.CheckpointMissed) -> None:
    """Record that a checkpoint is not on disk, or that the optimizer has no space for the job's files."""
    run.lacks_space = not missed.generation
    run.report.record_missed_checkpoint(missed)


def _note_commit(run: RunningJob, commit: pb.Commit, now: float) -> None:
    """Go on to the next step, since the optimizer has committed this one."""
    decided = Version(commit.generation, commit.step)
    if run.progress.version == decided:
        run.progress.advance(now)
        run.dispatch(now)
    run.report.note_commit(commit, decided.following, run.plan.wire)


def take_weights(run: RunningJob, header: ChunkHeader, now: float) -> None:
    """Store a chunk of weights from the optimizer; one of the next version implies its COMMIT."""
    version = Version(header.generation, header.step)
    if run.progress.version is None or header.kind != WEIGHTS or header.index >= run.progress.chunks:
        return
    if version == run.progress.version.following:
        run.progress.advance(now)
        run.dispatch(now)
    if version == run.progress.version == run.router.weights.version:
        run.router.store_weights(header)
