"""Commands that change jobs at an aggregator, or follow one: submit, continue, cancel, pause and others."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cli.output import Output, job_line
from protos import jobs_pb2
from services.errors import Failed, TiermeshError
from services.jobs.client import JobsClient
from services.jobs.connection import Unanswered, Unreachable
from services.jobs.fields import job_fields, state_name
from services.jobs.target import AggregatorTarget
from services.timeouts import STANDARD_TIMEOUTS

if TYPE_CHECKING:
    from cli.progress import ProgressView
    from services.config.job import JobConfig

OUTAGE_SECONDS = STANDARD_TIMEOUTS.follow
"""Longest outage of the aggregator that following a job survives."""

_RETRY_SECONDS = 1.0
Answer = TypeVar("Answer")
ENDED = frozenset({jobs_pb2.SUCCEEDED, jobs_pb2.FAILED, jobs_pb2.CANCELLED})


@dataclass(frozen=True)
class Submission:
    """A job that is ready to be submitted.

    Attributes:
        config: the complete job.
        code: archive of the code that it brings along; empty for none.
    """

    config: JobConfig
    code: bytes = b""


def read_job(path: Path, overrides: Sequence[str], output: Output, code: Path | None = None) -> Submission:
    """Return the complete job of a config file, and print the notices about it.

    Args:
        path: the file.
        overrides: settings that override the file's.
        output: where the notices go.
        code: folder with code to send with the job; None for none.

    Raises:
        Refused: the config is wrong; the message names the first such setting. Or the code can't be sent.
    """
    from cli.reading_progress import show_reading
    from services.config.load import load_job
    from services.jobs.own_code import read_code

    with show_reading(output):
        config, notices = load_job(path, overrides)
    for notice in notices:
        output.warn(notice)
    return Submission(config) if code is None else Submission(*read_code(code, config))


async def submit(
    target: AggregatorTarget,
    submission: Submission,
    output: Output,
    *,
    follow_it: bool,
    uploads: bool,
    tracking_dir: Path,
) -> None:
    """Queue a job, print its id and, with `follow_it`, show its progress until it ends.

    Args:
        target: aggregator to call.
        submission: the job.
        output: where the result goes.
        follow_it: whether to show the job's progress.
        uploads: whether to send the aggregator what it lacks of the job's data. Code is sent in any case.
        tracking_dir: folder of the trackers that this command writes.

    Raises:
        Refused: this command can't write the job's trackers.
        Failed: an upload failed; or `follow_it` is set, and the job failed or was cancelled.
    """
    from cli.tracking import (  # with the trackers, which other commands need not
        FollowedTracking,
        check_follower,
    )

    config = submission.config
    check_follower(config, follows=follow_it)
    async with JobsClient(target) as client:
        job = await queue_job(client, submission, output, uploads=uploads)
        await _advise(client, config, output)
        with FollowedTracking(config, tracking_dir, output) as tracking:
            await _show(client, job, output, follow_it=follow_it, record=tracking.record)


async def _advise(client: JobsClient, config: JobConfig, output: Output) -> None:
    """Say how a job's steps could use all connected workers, if they can't as it is."""
    from services.sizing.idle import advise_on_idle_workers

    with contextlib.suppress(TiermeshError):  # the job is queued, whatever is known of the workers
        status = await client.status()
        workers = sum(each.state != "refused" for each in status.workers)
        advice = advise_on_idle_workers(config, workers) if workers else None
        if advice is not None:
            output.warn(advice)


async def queue_job(
    client: JobsClient,
    submission: Submission,
    output: Output,
    *,
    uploads: bool,
    waits_for_aggregator: bool = False,
) -> jobs_pb2.Job:
    """Queue a job, and return it with its id; see `submit`.

    Args:
        client: client of the aggregator.
        submission: the job.
        output: where the notices go.
        uploads: whether to send the aggregator what it lacks of the job's data.
        waits_for_aggregator: whether to try again while the aggregator can't be reached, since it is started again.
    """
    from cli.uploads import upload_inputs
    from services.config.job_inputs import inputs_of_job
    from services.jobs.input_files import InputFiles

    config = submission.config
    inputs = [each for each in inputs_of_job(config) if uploads or each.is_code]
    files = InputFiles(inputs, submission.code)
    spec_json = config.to_json()
    request_id = draw_request_id()
    await upload_inputs(client, files, output)
    submit_it = retry_unreachable if waits_for_aggregator else call_once
    job = await submit_it(lambda: client.submit(config.name, spec_json, request_id))
    await upload_inputs(
        client, files, output
    )  # the job keeps its files now; another's may have pushed one out
    return job


async def continue_job(
    target: AggregatorTarget, request: jobs_pb2.ContinueRequest, output: Output, *, follow_it: bool
) -> None:
    """Queue a job that goes on where an ended one has stopped; otherwise like `submit`."""
    request.request_id = draw_request_id()
    async with JobsClient(target) as client:
        job = await call_once(lambda: client.continue_job(request))
        await _show(client, job, output, follow_it=follow_it)


async def _show(
    client: JobsClient,
    job: jobs_pb2.Job,
    output: Output,
    *,
    follow_it: bool,
    record: Callable[[jobs_pb2.JobEvent], None] = lambda event: None,
) -> None:
    """Print the id of a job that was just queued and, with `follow_it`, show and record its progress until it ends."""
    if not follow_it:
        output.say(job.id)
        output.result(job_fields(job))
        return
    from cli.progress import ProgressView  # with rich, which takes long to import

    with ProgressView(output) as view:
        view.say(f"job {job.id}")
        try:
            job = await follow(client, job.id, view, record)
        except asyncio.CancelledError:
            raise Failed(
                f"interrupted; job {job.id} goes on: follow it with `tiermesh logs {job.id} --follow`, cancel it with "
                f"`tiermesh cancel {job.id}`"
            ) from None
    output.say(job_line(job))
    if job.checkpoint:
        output.say(f"checkpoint of step {job.checkpoint_step}: {job.checkpoint}")
    output.result(job_fields(job))
    raise_unless_succeeded(job)


def draw_request_id() -> str:
    """Return an id that makes all attempts of one request yield the same job."""
    return uuid.uuid4().hex


async def call_once(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Return the result of a call with a request id, and repeat it while the aggregator fails to answer.

    Raises:
        Unreachable: there was no connection, or no answer for longer than OUTAGE_SECONDS.
    """
    try:
        return await call()
    except Unanswered:
        return await retry_unreachable(call)


async def follow(
    client: JobsClient,
    job: str,
    view: ProgressView,
    record: Callable[[jobs_pb2.JobEvent], None] = lambda event: None,
) -> jobs_pb2.Job:
    """Show a job until it has ended, across restarts of the aggregator; return its last state.

    Args:
        client: calls the aggregator.
        job: id of the job.
        view: shows its events.
        record: callback, called with each event too.

    Raises:
        Failed: the aggregator can't be reached for longer than OUTAGE_SECONDS.
    """
    heard = time.monotonic()
    while True:
        try:
            async with contextlib.aclosing(client.watch(job)) as events:
                async for event in events:
                    heard = time.monotonic()
                    view.update(event)
                    record(event)
                    if event.job.state in ENDED:
                        return event.job
            lost: Failed = Failed(
                f"aggregator {client.address}: closed the event stream of job {job} before the job ended"
            )
        except Unreachable as error:
            lost = error
        silent = time.monotonic() - heard
        if silent > OUTAGE_SECONDS:
            raise Failed(
                f"{lost}; waited {silent:.0f} s for events of job {job}, which may still be running; see "
                f"`tiermesh status {job}`"
            )
        await asyncio.sleep(_RETRY_SECONDS)


async def retry_unreachable(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Return the result of a call, and retry it while the aggregator can't be reached.

    Raises:
        Unreachable: the outage lasts longer than OUTAGE_SECONDS.
    """
    started = time.monotonic()
    while True:
        try:
            return await call()
        except Unreachable:
            if time.monotonic() - started > OUTAGE_SECONDS:
                raise
        await asyncio.sleep(_RETRY_SECONDS)


def raise_unless_succeeded(job: jobs_pb2.Job) -> None:
    """Raise Failed with the reason if a job failed or was cancelled."""
    if job.state != jobs_pb2.SUCCEEDED:
        raise Failed(f"job {job.id} {state_name(job)}: {job.detail or 'no reason given'}")


async def cancel(target: AggregatorTarget, job: str, output: Output, *, now: bool) -> None:
    """Cancel a job, print its state, and say how to go on."""
    async with JobsClient(target) as client:
        cancelled = await client.cancel(job, now=now)
    output.say(job_line(cancelled))
    step = cancelled.checkpoint_step if now else cancelled.step
    if step:
        output.say(f"go on from step {step} with: tiermesh continue {cancelled.id} --steps {cancelled.steps}")
    output.result(job_fields(cancelled))


async def change(
    target: AggregatorTarget, call: Callable[[JobsClient], Awaitable[jobs_pb2.Job]], output: Output
) -> None:
    """Change a job by one call, and print its new state."""
    async with JobsClient(target) as client:
        changed = await call(client)
    output.say(job_line(changed))
    output.result(job_fields(changed))
