"""`tiermesh status JOB`: one job, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cli.job_table import progress_bar
from cli.output import claim_lines, clock, job_phase, job_state, time_left
from cli.tables import format_fields
from cli.words import spell_duration, spell_number, spell_share
from protos import jobs_pb2
from services.jobs.fields import job_fields
from services.printable import counted, escape
from services.protocol.activities import BUSY, efficiency

ACTIVITIES: Mapping[str, str] = {
    "computing": "computing",
    "wire": "waiting for the wire",
    "update": "waiting for the update",
    "others": "waiting for other workers",
    "few_micro_batches": "a step has fewer micro-batches than workers",
    "waits_for_workers": "the job waits for more workers",
    "waits_for_optimizer": "the job waits for the optimizer",
    "stalled": "stalled",
    "no_job": "no job runs",
    "building": "building the job",
    "waits_for_data": "waits for the job's data",
    "waits_for_claim": "waits until the job decides between claims",
    "spare": "no row of workers needs it",
    "unfit": "can't open its mesh, or lacks the job's data",
    "refused": "refused by the job",
}
"""What a worker does with its time, or why it is idle, for people."""


def describe_job(job: jobs_pb2.Job, width: int | None, now: float) -> Iterator[str]:
    """Yield the lines about a job.

    Args:
        job: the job.
        width: columns that they should fit; None for any number.
        now: Unix time.
    """
    fields = [(name, escape(text)) for name, text in _fields(job, now) if text]
    yield from format_fields(fields, width)


def describe_times(worker_seconds: Mapping[str, float]) -> str:
    """Return how workers' time was spent, as in "71 % computing, 20 % waiting for the wire, 9 % idle (no job runs)"."""
    total = sum(worker_seconds.values())
    if total <= 0:
        return ""
    busy = {each.value for each in BUSY}
    parts = [
        f"{spell_share(worker_seconds[each.value] / total)} {ACTIVITIES[each.value]}"
        for each in BUSY
        if worker_seconds.get(each.value, 0.0) >= 0.001 * total
    ]
    idle = sorted(
        ((seconds, name) for name, seconds in worker_seconds.items() if name not in busy), reverse=True
    )
    parts += [
        f"{spell_share(seconds / total)} idle ({ACTIVITIES.get(name, name)})"
        for seconds, name in idle
        if seconds >= 0.001 * total
    ]
    return ", ".join(parts)


def _fields(job: jobs_pb2.Job, now: float) -> Iterator[tuple[str, str]]:
    yield "job", f"{job.id}  {job.name}".rstrip()
    yield "state", _state(job)
    yield "waiting", job.waiting.removeprefix("waits for ")
    yield "queue", f"place {job.position}, {spell_start(job)}" if job.position else ""
    yield "priority", str(job.priority or "")
    yield "detail", job.detail
    share = job.step / job.steps if job.steps else 0.0
    left = f", {time_left(job)}" if job.HasField("seconds_left") else ""
    yield "progress", f"{progress_bar(share, 20)} step {job.step} of {job.steps}{left}"
    yield "loss", _loss(job)
    yield "speed", _speed(job)
    yield "workers", _workers(job)
    yield "advice", job.advice
    yield "checkpoint", f"step {job.checkpoint_step}: {job.checkpoint}" if job.checkpoint else ""
    yield "sha256", job.model_sha256
    yield "model", f"{job.parameters:,} parameters" if job.parameters else ""
    yield "started from", f"{job.start.job}:{job.start.step}" if job.HasField("start") else ""
    yield "went back", counted(job.generation - 1, "time") if job.generation > 1 else ""
    yield "skipped", job.skipped
    for each in job.excluded:
        yield "faulty", f"worker {each.worker}: {each.reason}"
    claims: list[dict[str, Any]] = job_fields(job)["claims"] or []
    yield "claims", claim_lines(claims) if len(claims) > 1 else ""  # one that all share decides nothing
    yield "owner", job.owner
    yield "submitted", _ago(job.submitted_seconds, now)
    yield "started", _ago(job.started_seconds, now)
    yield "ended", _ended(job, now)


def spell_start(job: jobs_pb2.Job) -> str:
    """Return when a queued job presumably starts, as in "starts in 12 min"."""
    if not job.HasField("estimated_start_seconds"):
        return "start unknown"
    return f"starts in {spell_duration(job.estimated_start_seconds)}"


def _state(job: jobs_pb2.Job) -> str:
    return f"{job_state(job)}: {job_phase(job)}" if job.phase else job_state(job)


def _loss(job: jobs_pb2.Job) -> str:
    parts = [f"{job.loss:.4f}"] if job.HasField("loss") else []
    if job.HasField("validation_loss"):
        apart = job.validation_loss - job.loss if job.HasField("loss") else 0.0
        difference = f", {spell_number(abs(apart))} {'above' if apart > 0 else 'below'} it" if apart else ""
        parts.append(f"validation {job.validation_loss:.4f} at step {job.validation_step}{difference}")
    return ", ".join(parts)


def _speed(job: jobs_pb2.Job) -> str:
    parts = [f"{spell_number(job.tokens_per_second)} tokens/s"] if job.tokens_per_second else []
    if job.step_seconds:
        parts.append(f"{spell_duration(job.step_seconds)} a step")
    if job.evaluation_seconds:
        parts.append(f"{spell_duration(job.evaluation_seconds)} an evaluation")
    if job.HasField("mfu"):
        parts.append(f"MFU {100 * job.mfu:.3g} %")
    return ", ".join(parts)


def _workers(job: jobs_pb2.Job) -> str:
    share = efficiency(job.worker_seconds)
    parts = [str(job.workers)] if job.workers else []
    if share is not None:
        parts.append(f"efficiency {spell_share(share)}: {describe_times(job.worker_seconds)}")
    return ", ".join(parts)


def _ago(seconds: float, now: float) -> str:
    return f"{clock(seconds)}, {spell_duration(now - seconds)} ago" if seconds else ""


def _ended(job: jobs_pb2.Job, now: float) -> str:
    if not job.ended_seconds:
        return ""
    took = f", after {spell_duration(job.ended_seconds - job.started_seconds)}" if job.started_seconds else ""
    return f"{_ago(job.ended_seconds, now)}{took}"
