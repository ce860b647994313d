"""`tiermesh local`: a whole cluster on this machine, real daemons as processes, one job run to its end."""

from __future__ import annotations

import asyncio
import fcntl
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.client import JobsClient
from cli.jobs import ENDED, follow, patiently, raise_unless_succeeded, read_job
from cli.options import AggregatorTarget
from cli.output import Output, job_fields, job_line
from cli.progress import ProgressView
from cli.supervise import supervise
from protos import jobs_pb2
from services.errors import Failed, Refused
from services.instrumentation.timeline import TimelineOptions
from services.runtime.launcher import DaemonProcess, stop_all
from services.transport.security import Security

ANSWER_SECONDS = 30.0
"""A call to an aggregator of this machine is answered within this time."""


@dataclass(frozen=True)
class LocalOptions:
    """What `tiermesh local` is told.

    Attributes:
        job: config file.
        overrides: `key=value` settings on top of it.
        workers: number of worker daemons; how they share a step does not change its result.
        tiers: 2: the optimizer runs inside the aggregator; 3: as a daemon of its own.
        shards: processes that tensors are split over in 2 tiers; 0: they are in the aggregator.
        state_dir: queue, checkpoints, logs.
        resume: continue the unfinished job of `state_dir` instead of submitting one.
        sample_tokens: length of the sample of generated text at the end; 0 for none.
        log_level: of the daemons' logs.
        allowed_models: code of models of the user's own that the workers may import.
        timeline: which steps the daemons record what happens when of, and where to; None: none.
        supervise: start a daemon that dies again, instead of ending with it.
    """

    job: Path
    overrides: tuple[str, ...]
    workers: int
    tiers: int
    shards: int
    state_dir: Path
    resume: bool
    sample_tokens: int
    log_level: str
    allowed_models: tuple[str, ...] = ()
    timeline: TimelineOptions | None = None
    supervise: bool = False


def run(options: LocalOptions, output: Output) -> None:
    """Run the job to its end and print how it ended.

    Raises:
        Refused: the config is wrong, the state dir is in use or has an unfinished job, or shards are wanted in 3 tiers.
        Failed: the job failed or was cancelled, a daemon that it needs ended, or it was interrupted.
    """
    if options.shards and options.tiers == 3:
        raise Refused(
            f"--shards {options.shards} and --tiers 3: the optimizer's tensors are in the shards; give --tiers 2"
        )
    config = None if options.resume else read_job(options.job, options.overrides, output)
    with locked(options.state_dir):
        submission = (config.name, config.to_json()) if config else None
        started = time.monotonic()
        job = asyncio.run(_run(options, submission, output))
        seconds = time.monotonic() - started
        output.say(job_line(job))
        sample = _sample(Path(job.checkpoint), options, output) if job.checkpoint else None
    if job.checkpoint:
        output.say(f"checkpoint of step {job.checkpoint_step}: {job.checkpoint}")
    output.result(
        {**job_fields(job), "seconds": round(seconds, 3), "state_dir": str(options.state_dir), "text": sample}
    )
    raise_unless_succeeded(job)


async def _run(options: LocalOptions, submission: tuple[str, str] | None, output: Output) -> jobs_pb2.Job:
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    assert main is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, main.cancel)
    job: jobs_pb2.Job | None = None
    try:
        async with _cluster(options, output) as (target, daemons), JobsClient(target) as client:
            with ProgressView(output) as view:

                async def work() -> jobs_pb2.Job:
                    nonlocal job
                    job = await _take_up(client, options, submission)
                    view.say(f"job {job.id}; logs: {options.state_dir / 'logs'}")
                    return await follow(client, job.id, view)

                return await _while_alive(work(), daemons, view.say, restart=options.supervise)
    except asyncio.CancelledError:
        if job is None:
            raise Failed("interrupted before the job was submitted") from None
        raise Failed(
            f"interrupted: job {job.id} is unfinished; continue it with: {_resume_command(options)}"
        ) from None


@asynccontextmanager
async def _cluster(
    options: LocalOptions, output: Output
) -> AsyncIterator[tuple[AggregatorTarget, list[DaemonProcess]]]:
    """The daemons, ready; stopped when the context ends."""
    daemons: list[DaemonProcess] = []
    state, logs = options.state_dir, options.state_dir / "logs"

    common = ["--log-level", options.log_level]
    if options.timeline is not None:
        common += options.timeline.flags

    def start(role: str, name: str, *arguments: str) -> DaemonProcess:
        daemon = DaemonProcess(role, name, logs, [*arguments, *common]).start()
        daemons.append(daemon)
        return daemon

    try:
        others: list[str] = []
        if options.tiers == 3:
            optimizer = start("optimizer", "optimizer", "--state-dir", str(state))
            await optimizer.wait_ready()
            others = ["--optimizer", optimizer.address]
        shards = [start("aggregator", f"shard-{number}", "--shard") for number in range(options.shards)]
        await asyncio.gather(*(shard.wait_ready() for shard in shards))
        if shards:
            others = ["--shards", ",".join(shard.address for shard in shards)]
        aggregator = start("aggregator", "aggregator", "--state-dir", str(state), *others)
        await aggregator.wait_ready()
        allowed = [text for name in options.allowed_models for text in ("--allow-models", name)]
        workers = [
            start("worker", f"worker-{number}", "--aggregator", aggregator.address, *allowed)
            for number in range(1, options.workers + 1)
        ]
        await asyncio.gather(*(worker.wait_ready() for worker in workers))
        output.say(
            f"{options.tiers}-tier cluster: "
            + ", ".join(f"{daemon.name} on port {daemon.port}" for daemon in daemons)
        )
        yield AggregatorTarget(aggregator.address, Security(), ANSWER_SECONDS), daemons
    finally:
        await asyncio.shield(stop_all(daemons))


async def _take_up(
    client: JobsClient, options: LocalOptions, submission: tuple[str, str] | None
) -> jobs_pb2.Job:
    """The job to follow: submitted now or, with `resume`, the unfinished one."""
    known = await patiently(client.jobs)
    unfinished = [job for job in known if job.state not in ENDED]
    if submission is None:
        if not unfinished:
            raise Refused(
                f"--resume: no unfinished job in {options.state_dir}; leave out --resume to start one, or give the "
                "--state-dir of the one you mean"
            )
        return unfinished[0]
    if unfinished:
        raise Refused(
            f"--state-dir {options.state_dir}: job {unfinished[0].id} ({unfinished[0].name}) is unfinished at step "
            f"{unfinished[0].step} of {unfinished[0].steps}; continue it with --resume, or give another --state-dir"
        )
    name, spec_json = submission
    ids = {job.id for job in known}

    async def submit_once() -> jobs_pb2.Job:
        # Nobody else submits here: a job that was not there before is this one, its answer lost with the aggregator.
        submitted = [job for job in await client.jobs() if job.id not in ids]
        return submitted[0] if submitted else await client.submit(name, spec_json)

    return await patiently(submit_once)


async def _while_alive(
    work: Coroutine[Any, Any, jobs_pb2.Job],
    daemons: list[DaemonProcess],
    say: Callable[[str], None],
    *,
    restart: bool,
) -> jobs_pb2.Job:
    """What comes of work that needs the daemons; a worker may die as long as another lives, the other roles may not.

    With `restart` who dies is started again; that holds for those alone who were refused then.

    Raises:
        Failed: naming the daemon that ended, and its log.
    """
    following = asyncio.ensure_future(work)
    ends = {
        asyncio.ensure_future(supervise(daemon, say) if restart else daemon.wait_ended()): daemon
        for daemon in daemons
    }
    try:
        while not following.done():
            await asyncio.wait({following, *ends}, return_when=asyncio.FIRST_COMPLETED)
            for end in [end for end in ends if end.done() and not following.done()]:
                daemon = ends.pop(end)
                end.result()  # raises what starting it again did
                if daemon.role != "worker" or not any(each.role == "worker" for each in ends.values()):
                    raise Failed(daemon.describe_end())
                say(f"{daemon.describe_end()}; the job goes on with the other workers")
        return following.result()
    finally:
        for task in (following, *ends):
            task.cancel()
        # None of them may start a daemon once the cluster is being stopped.
        await asyncio.gather(following, *ends, return_exceptions=True)


def _sample(checkpoint: Path, options: LocalOptions, output: Output) -> str | None:
    """Print and return generated text of a language model; None for other models."""
    from cli.generate import generated, is_language_model

    if not options.sample_tokens or not is_language_model(checkpoint):
        return None
    output.say(f"a sample of {options.sample_tokens} tokens:")
    return generated(checkpoint, "\n", output, max_new_tokens=options.sample_tokens)


@contextmanager
def locked(state_dir: Path) -> Iterator[None]:
    """Make the state dir, and hold it against a second cluster on this machine.

    Raises:
        Refused: it can't be made, or is in use.
    """
    try:
        (state_dir / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"--state-dir {state_dir}: can't be made ({error.strerror}); give another") from None
    with (state_dir / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"--state-dir {state_dir}: in use by another `tiermesh local` or `chaos`; wait for it, or give another"
            ) from None
        yield


def _resume_command(options: LocalOptions) -> str:
    return (
        f"tiermesh local {options.job} --resume --state-dir {options.state_dir} --tiers {options.tiers} "
        f"--workers {options.workers}"
        + (f" --shards {options.shards}" if options.shards else "")
        + (" --supervise" if options.supervise else "")
        + "".join(f" --allow-models {name}" for name in options.allowed_models)
    )
