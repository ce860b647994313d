"""A job and the cluster as JSON values, for `--json` of the command and for the HTTP API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from protos import jobs_pb2
from services.pipeline.row_ids import row_number
from services.protocol.activities import efficiency


def state_name(job: jobs_pb2.Job) -> str:
    """Return `queued`, `running`, `paused`, `succeeded`, `failed` or `cancelled`."""
    return str(jobs_pb2.JobState.Name(job.state)).lower()


def job_fields(job: jobs_pb2.Job) -> dict[str, Any]:
    """Return a job as JSON values; None stands for what isn't known yet."""
    return {
        "job": job.id,
        "name": job.name,
        "owner": job.owner or None,
        "state": state_name(job),
        "phase": job.phase or None,
        "started_from": f"{job.start.job}:{job.start.step}" if job.HasField("start") else None,
        "detail": job.detail or None,
        "priority": job.priority,
        "pausing": job.pausing,
        "position": job.position or None,
        "estimated_start_seconds": job.estimated_start_seconds
        if job.HasField("estimated_start_seconds")
        else None,
        "min_workers": job.min_workers or None,
        "max_workers": job.max_workers or None,
        "waiting": job.waiting or None,
        "workers": job.workers,
        "efficiency": efficiency(job.worker_seconds),
        "worker_seconds": dict(sorted(job.worker_seconds.items())),
        "evaluated_batches": job.evaluated_batches if job.evaluation_batches else None,
        "evaluation_batches": job.evaluation_batches or None,
        "step": job.step,
        "steps": job.steps,
        "loss": job.loss if job.HasField("loss") else None,
        "validation_loss": job.validation_loss if job.HasField("validation_loss") else None,
        "validation_step": job.validation_step if job.HasField("validation_loss") else None,
        "checkpoint": job.checkpoint or None,
        "checkpoint_step": job.checkpoint_step if job.checkpoint else None,
        "model_sha256": job.model_sha256 or None,
        "parameters": job.parameters or None,
        "flops_per_token": job.flops_per_token or None,
        "tokens_per_second": job.tokens_per_second,
        "samples_per_second": job.samples_per_second or None,
        "mfu": job.mfu if job.HasField("mfu") else None,
        "seconds_left": job.seconds_left if job.HasField("seconds_left") else None,
        "skipped": job.skipped or None,
        "excluded": {each.worker: each.reason for each in job.excluded} or None,
        "claims": [
            {
                "workers": [one.worker for one in each.claimants],
                "standing": _standing(each, own=each == job.claims[0]),
                "fingerprint": dict(sorted(each.fingerprint.items())),
                "layout_hash": each.layout_hash,
                "elements": each.elements,
            }
            for each in job.claims
        ]
        or None,
        "generation": job.generation,
        "submitted_seconds": job.submitted_seconds or None,
        "started_seconds": job.started_seconds or None,
        "ended_seconds": job.ended_seconds or None,
    }


def _standing(claim: jobs_pb2.Claim, *, own: bool) -> str:
    """Return what a claim means for its workers: whether the job goes by it, and for how long."""
    if own:
        return "bound" if claim.bound else "taken"
    return "contends" if claim.contends else "differs"


def find_slowest(status: jobs_pb2.ClusterStatus) -> jobs_pb2.Member | None:
    """Return the worker whose stages take longest for a micro-batch; None before two workers' speeds are known."""
    known = [each for each in status.workers if each.stages and each.micro_batches_per_second > 0]
    return min(known, key=lambda each: each.micro_batches_per_second) if len(known) > 1 else None


def cluster_fields(status: jobs_pb2.ClusterStatus) -> dict[str, Any]:
    """Return a cluster's status as JSON values; None stands for what isn't known yet."""
    slowest = find_slowest(status)
    return {
        "epoch": status.epoch,
        "leader": status.leader,
        "version": status.version or None,
        "standbys": [
            {"name": standby.name, "seconds_since_heard": standby.seconds_since_heard}
            for standby in status.standbys
        ],
        "tiers": status.tiers,
        "optimizer": status.optimizer,
        "optimizer_host": status.optimizer_connection.host or None,
        "optimizer_version": status.optimizer_connection.version or None,
        "running_jobs": list(status.running_jobs),
        "waiting": status.waiting or None,
        "job_waits": dict(zip(status.running_jobs, status.job_waits, strict=False)),
        "waits": [
            {
                "role": wait.role,
                "peer": wait.peer,
                "job": wait.job,
                "step": wait.step,
                "bucket": wait.bucket,
                "what": wait.what,
                "seconds": wait.seconds,
            }
            for wait in status.waits
        ],
        "shards": [
            {
                "name": shard.name or None,
                "address": shard.address,
                "version": shard.connection.version or None,
                "connected": not shard.detail,
                "detail": shard.detail or None,
                "seconds_since_heard": None if shard.detail else shard.seconds_since_heard,
            }
            for shard in status.shards
        ],
        "worker_seconds": dict(sorted(status.worker_seconds.items())),
        "efficiency": efficiency(status.worker_seconds),
        "workers": [
            {
                "name": worker.name,
                "incarnation": worker.incarnation,
                "host": worker.connection.host or None,
                "version": worker.connection.version or None,
                "state": worker.state,
                "job": worker.job or None,
                "detail": worker.detail or None,
                "row": row_number(worker.row) if worker.stages else None,
                "first_stage": worker.first_stage if worker.stages else None,
                "stages": worker.stages,
                "generation": worker.generation,
                "step": worker.step,
                "seconds_since_heard": worker.seconds_since_heard,
                "micro_batches_per_second": worker.micro_batches_per_second,
                "seconds_since_speed": worker.seconds_since_speed or None,
                "activity": worker.activity or None,
            }
            for worker in status.workers
        ],
        "links": [
            {
                "from": name,
                "to": status.leader,
                "round_trip_seconds": _known(found, "round_trip_seconds"),
                "sent_bytes_per_second": _known(found, "sent_bytes_per_second"),
                "received_bytes_per_second": _known(found, "received_bytes_per_second"),
            }
            for name, found in _connections(status)
        ],
        "slowest_stages": None
        if slowest is None
        else {"worker": slowest.name, "first_stage": slowest.first_stage, "stages": slowest.stages},
    }


def _connections(status: jobs_pb2.ClusterStatus) -> Iterator[tuple[str, jobs_pb2.Connection]]:
    """Yield the name of each process that is connected to the aggregator, with its connection."""
    if status.HasField("optimizer_connection"):
        yield status.optimizer, status.optimizer_connection
    for shard in status.shards:
        if shard.HasField("connection"):
            yield shard.name, shard.connection
    for worker in status.workers:
        if worker.HasField("connection"):
            yield worker.name, worker.connection


def _known(connection: jobs_pb2.Connection, field: str) -> float | None:
    return float(getattr(connection, field)) if connection.HasField(field) else None
