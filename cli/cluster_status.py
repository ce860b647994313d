"""`tiermesh status`: the cluster with its roles, and the stages of a pipeline that its workers have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest

from cli.job_text import ACTIVITIES, describe_times
from cli.output import Output
from cli.tables import wrap
from cli.watch import Picture
from cli.words import spell_duration, spell_number, spell_share
from protos import jobs_pb2
from services.jobs.client import JobsClient
from services.jobs.fields import cluster_fields, find_slowest
from services.pipeline.row_ids import row_number
from services.pipeline.split import StageRun
from services.printable import counted, group_by_reason
from services.protocol.activities import IDLE, efficiency

_NEW_SPEED_SECONDS = 10.0
"""Age from which a worker's speed is shown with it."""


async def draw_cluster(client: JobsClient, output: Output) -> Picture:
    """Return the cluster: tiers, optimizer, workers, the running jobs and their waits."""
    status = await client.status()
    lines = [each for line in describe_status(status, client.address) for each in wrap(line, output.width)]
    return Picture(lines, cluster_fields(status))


def describe_status(status: jobs_pb2.ClusterStatus, address: str) -> Iterator[str]:
    """Yield the lines about a cluster, for people."""
    yield f"aggregator {status.leader} at {address}: {status.tiers}-tier, epoch {status.epoch}"
    for standby in status.standbys:
        yield f"standby {standby.name}: last message {spell_duration(standby.seconds_since_heard)} ago"
    yield f"optimizer: {status.optimizer}{_in_brackets(_other_version(status.optimizer_connection, status))}"
    # An optimizer that is not connected has the reason in place of a name, which its own line says.
    reason = f": {status.optimizer}"
    if len(status.running_jobs) > 1:
        for job, waiting in zip_longest(status.running_jobs, status.job_waits, fillvalue=""):
            yield f"running job: {job}{_in_brackets(waiting.removesuffix(reason))}"
    else:
        waiting = _in_brackets(status.waiting.removesuffix(reason))
        yield f"running job: {''.join(status.running_jobs) or 'none'}{waiting}"
    share = efficiency(status.worker_seconds)
    if share is not None:
        times = describe_times(status.worker_seconds)
        yield f"efficiency within the last hour: {spell_share(share)} ({times})"
    for shard in status.shards:
        name = f" {shard.name}" if shard.name else ""
        state = (
            f"not connected: {shard.detail}"
            if shard.detail
            else f"last message {spell_duration(shard.seconds_since_heard)} ago"
        )
        state += _in_brackets(_other_version(shard.connection, status))
        yield f"shard {shard.index} of {len(status.shards)}{name} at {shard.address}: {state}"
    yield from _describe_workers(status)
    slowest = find_slowest(status)
    if slowest is not None:
        yield (
            f"slowest in the pipeline: {_stages_of(slowest)} on worker {slowest.name}, "
            f"{spell_number(slowest.micro_batches_per_second)} micro-batches/s"
        )
    for wait in status.waits:
        chunk = f", chunk {wait.bucket}" if wait.HasField("bucket") else ""
        waited = spell_duration(wait.seconds)
        peer = wait.role if wait.peer == wait.role else f"{wait.role} {wait.peer}"
        of_job = f"job {wait.job}, " if len(status.running_jobs) > 1 else ""
        yield f"waiting {waited} for {peer}: {wait.what.removesuffix(reason)}, {of_job}step {wait.step}{chunk}"
    if not status.workers:
        yield f"no workers; start one with: tiermesh worker --aggregator {address}"


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def _describe_workers(status: jobs_pb2.ClusterStatus) -> Iterator[str]:
    """Yield a line for each worker, and one for all workers that are refused for the same reason."""
    refused = {each.name: each.detail for each in status.workers if each.state == "refused" and each.detail}
    often = {reason for reason, count in Counter(refused.values()).items() if count > 1}
    for worker in _in_order_of_stages(status):
        if refused.get(worker.name) not in often:
            yield _describe_worker(worker, status)
    alike = {name: reason for name, reason in refused.items() if reason in often}
    for names, reason in group_by_reason(alike):
        count = sum(each == reason for each in alike.values())
        yield f"{counted(count, 'worker')} refused ({reason}): {names}"


def _other_version(connection: jobs_pb2.Connection, status: jobs_pb2.ClusterStatus) -> str:
    """Return which version a process has, if that is another one than the aggregator's; else an empty text."""
    if connection.version in ("", status.version):
        return ""
    return f"version {connection.version}, the aggregator has {status.version}"


def _describe_worker(worker: jobs_pb2.Member, status: jobs_pb2.ClusterStatus) -> str:
    facts = [f"{worker.state}{f' ({worker.detail})' if worker.detail else ''}"]
    if version := _other_version(worker.connection, status):
        facts.append(version)
    if len(status.running_jobs) > 1 and worker.job:
        facts.append(f"job {worker.job}")
    idle = worker.activity in {each.value for each in IDLE}
    if idle and not worker.detail and worker.activity not in (worker.state, "stalled"):
        facts.append(f"idle: {ACTIVITIES[worker.activity]}")
    if worker.stages:
        facts.append(f"{_stages_of(worker)} of row {row_number(worker.row)}")
    if worker.generation or worker.step:
        facts.append(f"weights of step {worker.step}")
    if worker.micro_batches_per_second:
        facts.append(_describe_speed(worker))
    heard = spell_duration(worker.seconds_since_heard)
    return f"worker {worker.name}: {', '.join(facts)}, last message {heard} ago"


def _describe_speed(worker: jobs_pb2.Member) -> str:
    """Return a worker's last speed, with its age unless it has just been measured."""
    speed = f"{spell_number(worker.micro_batches_per_second)} micro-batches/s"
    old = worker.seconds_since_speed >= _NEW_SPEED_SECONDS
    return f"{speed} {spell_duration(worker.seconds_since_speed)} ago" if old else speed


def _in_order_of_stages(status: jobs_pb2.ClusterStatus) -> list[jobs_pb2.Member]:
    """Return the workers: first those of rows, row by row in the order of their stages."""
    return sorted(status.workers, key=lambda each: (not each.stages, each.row, each.first_stage))


def _stages_of(worker: jobs_pb2.Member) -> StageRun:
    return StageRun(worker.first_stage, worker.stages)
