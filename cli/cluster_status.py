"""`tiermesh status`: the cluster with its roles, and the stages of a pipeline that its workers have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cli.client import JobsClient
from cli.options import AggregatorTarget
from cli.output import Output
from protos import jobs_pb2
from services.pipeline.row_ids import row_number
from services.pipeline.split import StageRun


async def cluster_status(target: AggregatorTarget, output: Output) -> None:
    """Print the cluster: tiers, optimizer, workers, the running job and its waits."""
    async with JobsClient(target) as client:
        status = await client.status()
    for line in describe_status(status, client.address):
        output.say(line)
    output.result(_values(status))


def describe_status(status: jobs_pb2.ClusterStatus, address: str) -> Iterator[str]:
    """Yield the lines about a cluster, for people."""
    yield f"aggregator {status.leader} at {address}: {status.tiers}-tier, epoch {status.epoch}"
    for standby in status.standbys:
        yield f"standby {standby.name}: last message {standby.seconds_since_heard:.1f} s ago"
    yield f"optimizer: {status.optimizer}"
    waiting = f" ({status.waiting})" if status.waiting else ""
    yield f"running job: {status.running_job or 'none'}{waiting}"
    for shard in status.shards:
        name = f" {shard.name}" if shard.name else ""
        state = (
            f"not connected: {shard.detail}"
            if shard.detail
            else f"last message {shard.seconds_since_heard:.1f} s ago"
        )
        yield f"shard {shard.index} of {len(status.shards)}{name} at {shard.address}: {state}"
    for worker in _in_order_of_stages(status):
        yield _describe_worker(worker)
    slowest = find_slowest(status)
    if slowest is not None:
        yield (
            f"slowest in the pipeline: {_stages_of(slowest)} on worker {slowest.name}, "
            f"{slowest.micro_batches_per_second:.1f} micro-batches/s"
        )
    for wait in status.waits:
        chunk = f", chunk {wait.bucket}" if wait.HasField("bucket") else ""
        yield f"waiting {wait.seconds:.1f} s for {wait.role} {wait.peer}: {wait.what}, step {wait.step}{chunk}"
    if not status.workers:
        yield "no workers; start one with: tiermesh worker --aggregator HOST:PORT"


def _describe_worker(worker: jobs_pb2.Member) -> str:
    facts = [f"{worker.state}{f' ({worker.detail})' if worker.detail else ''}"]
    if worker.stages:
        facts.append(f"{_stages_of(worker)} of row {row_number(worker.row)}")
    if worker.state != "spare":
        facts += [f"weights of step {worker.step}", f"{worker.micro_batches_per_second:.1f} micro-batches/s"]
    return f"worker {worker.name}: {', '.join(facts)}, last message {worker.seconds_since_heard:.1f} s ago"


def _in_order_of_stages(status: jobs_pb2.ClusterStatus) -> list[jobs_pb2.Member]:
    """Return the workers: first those of rows, row by row in the order of their stages."""
    return sorted(status.workers, key=lambda each: (not each.stages, each.row, each.first_stage))


def find_slowest(status: jobs_pb2.ClusterStatus) -> jobs_pb2.Member | None:
    """Return the worker whose stages take longest for a micro-batch; None before two workers' speeds are known."""
    known = [each for each in status.workers if each.stages and each.micro_batches_per_second > 0]
    return min(known, key=lambda each: each.micro_batches_per_second) if len(known) > 1 else None


def _stages_of(worker: jobs_pb2.Member) -> StageRun:
    return StageRun(worker.first_stage, worker.stages)


def _values(status: jobs_pb2.ClusterStatus) -> dict[str, Any]:
    """Return a cluster's status as a JSON object."""
    slowest = find_slowest(status)
    return {
        "epoch": status.epoch,
        "leader": status.leader,
        "standbys": [
            {"name": standby.name, "seconds_since_heard": standby.seconds_since_heard}
            for standby in status.standbys
        ],
        "tiers": status.tiers,
        "optimizer": status.optimizer,
        "running_job": status.running_job or None,
        "waiting": status.waiting or None,
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
                "connected": not shard.detail,
                "detail": shard.detail or None,
                "seconds_since_heard": None if shard.detail else shard.seconds_since_heard,
            }
            for shard in status.shards
        ],
        "workers": [
            {
                "name": worker.name,
                "incarnation": worker.incarnation,
                "state": worker.state,
                "detail": worker.detail or None,
                "row": row_number(worker.row) if worker.stages else None,
                "first_stage": worker.first_stage if worker.stages else None,
                "stages": worker.stages,
                "generation": worker.generation,
                "step": worker.step,
                "seconds_since_heard": worker.seconds_since_heard,
                "micro_batches_per_second": worker.micro_batches_per_second,
            }
            for worker in status.workers
        ],
        "slowest_stages": None
        if slowest is None
        else {"worker": slowest.name, "first_stage": slowest.first_stage, "stages": slowest.stages},
    }
