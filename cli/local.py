"""`tiermesh local`: start a cluster of real daemons on this machine and run one job to its end."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cli.jobs import (
    ENDED,
    Submission,
    follow,
    queue_job,
    raise_unless_succeeded,
    read_job,
    retry_unreachable,
)
from cli.options import OWN_TOKEN_FILE
from cli.output import Output, job_line
from cli.progress import ProgressView
from cli.small_curve import draw_loss_of_folder
from cli.supervise import supervise
from cli.tracking import leave_trackers_to_aggregator
from protos import jobs_pb2
from services.errors import Failed, Refused
from services.instrumentation.timeline import TimelineOptions
from services.jobs.client import JobsClient
from services.jobs.fields import job_fields, state_name
from services.jobs.target import AggregatorTarget
from services.printable import counted
from services.runtime.file_locks import try_lock
from services.runtime.launcher import DaemonProcess, kill_all, stop_all
from services.tasks import start_awaited
from services.transport.security import Security

ANSWER_SECONDS = 30.0
"""Longest wait for an answer of an aggregator on this machine."""


@dataclass(frozen=True)
class LocalOptions:
    """Options of `tiermesh local`.

    Attributes:
        job: config file.
        overrides: `key=value` settings that override the file.
        workers: number of worker daemons; it does not change the result.
        tiers: 3 to run the optimizer as a daemon of its own, 2 to run it inside the aggregator.
        shards: number of processes that tensors are split over, in 2 tiers; 0 for none.
        state_dir: folder for queue, checkpoints and logs.
        resume: whether to continue the unfinished job of `state_dir` instead of submitting one.
        sample_tokens: number of tokens of sample text to generate at the end; 0 for none.
        log_level: lowest level that the daemons log.
        allowed_models: Python modules with models that the workers may import.
        code: folder with code to send with the job; None for none. An unfinished job keeps the code that it has.
        timeline: steps that the daemons record in their timelines; None for none.
        supervise: whether to restart daemons that die.
        web: `HOST:PORT` of the HTTP API; empty for none.
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
    code: Path | None = None
    timeline: TimelineOptions | None = None
    supervise: bool = False
    web: str = ""


def run(options: LocalOptions, output: Output) -> None:
    """Run the job to its end and print the outcome.

    Raises:
        Refused: the config is wrong, or the state dir is in use or has an unfinished job.
        Failed: the job failed or was cancelled, a daemon that it needs ended, or the command was interrupted.
    """
    from aggregator.storage.backup import QUEUE_FILE
    from services.config.load import names_external
    from services.config.models import ExternalConfig

    if options.resume and options.overrides:
        raise Refused(
            f"--resume: {options.overrides[0]!r} given, but an unfinished job keeps the settings that it was submitted "
            "with; leave the setting out, or leave out --resume and give another --state-dir"
        )
    if options.resume and not (options.state_dir / QUEUE_FILE).exists():
        raise _nothing_to_resume(options)
    submission = None
    if not options.resume:
        read = read_job(options.job, options.overrides, output, options.code)
        submission = replace(read, config=leave_trackers_to_aggregator(read.config))
    external = (
        names_external(options.job)
        if submission is None
        else isinstance(submission.config.model, ExternalConfig)
    )
    with lock_state_dir(options.state_dir):
        started = time.monotonic()
        job = asyncio.run(_run(options, submission, output, external=external))
        seconds = time.monotonic() - started
        output.say(job_line(job))
        for line in draw_loss_of_folder(options.state_dir / "metrics" / job.id, output):
            output.say(line)
        sample = _sample(Path(job.checkpoint), options, output) if job.checkpoint else None
    if job.checkpoint:
        output.say(f"checkpoint of step {job.checkpoint_step}: {job.checkpoint}")
    output.result(
        {**job_fields(job), "seconds": round(seconds, 3), "state_dir": str(options.state_dir), "text": sample}
    )
    raise_unless_succeeded(job)


async def _run(
    options: LocalOptions, submission: Submission | None, output: Output, *, external: bool
) -> jobs_pb2.Job:
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    assert main is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, main.cancel)
    job: jobs_pb2.Job | None = None
    try:
        cluster = _cluster(options, output, external=external)
        async with cluster as (target, daemons), JobsClient(target) as client:
            with ProgressView(output) as view:

                async def work() -> jobs_pb2.Job:
                    nonlocal job
                    job = await _submit_or_resume(client, options, submission, output)
                    view.say(f"job {job.id}; logs: {options.state_dir / 'logs'}")
                    for number in range(1, options.workers + 1) if external else ():
                        socket = str(join_socket(options.state_dir, number))
                        view.say(f"a process joins with: tiermesh.join({socket!r}, job={job.id!r}, ...)")
                    job = await follow(client, job.id, view)
                    return job

                return await _run_while_daemons_live(work(), daemons, view.say, restart=options.supervise)
    except asyncio.CancelledError:
        if job is None:
            raise Failed(
                "interrupted before the job was submitted; run the command again to start it"
            ) from None
        if job.state in ENDED:
            raise Failed(f"interrupted after the end of job {job.id}: {state_name(job)}") from None
        from services.checkpoints.read import checkpoints_by_step

        steps = checkpoints_by_step(options.state_dir / "checkpoints" / job.id)
        saved = f"step {max(steps)}" if steps else "its start"
        raise Failed(
            f"interrupted; job {job.id} is unfinished; continue it from {saved} with: {_resume_command(options)}"
        ) from None


@asynccontextmanager
async def _cluster(
    options: LocalOptions, output: Output, *, external: bool
) -> AsyncIterator[tuple[AggregatorTarget, list[DaemonProcess]]]:
    """Start the daemons, yield them ready, and stop them when the context ends."""
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
        output.announce(f"starting the daemons of {counted(options.workers, 'worker')}; logs: {logs}")
        others: list[str] = []
        if options.tiers == 3:
            optimizer = start("optimizer", "optimizer", "--state-dir", str(state))
            await optimizer.wait_ready()
            others = ["--optimizer", optimizer.address]
        shards = [
            start("aggregator", name, "--shard", "--state-dir", str(state / name))
            for name in (f"shard-{number}" for number in range(options.shards))
        ]
        await asyncio.gather(*(shard.wait_ready() for shard in shards))
        if shards:
            others = ["--shards", ",".join(shard.address for shard in shards)]
        aggregator = start("aggregator", "aggregator", "--state-dir", str(state), *others)
        await aggregator.wait_ready()
        allowed = [text for name in options.allowed_models for text in ("--allow-models", name)]
        allowed += ["--accept-code"] if options.code is not None else []
        worker_options = ["--state-dir", str(state / "workers"), *allowed]
        workers = []
        for number in range(1, options.workers + 1):
            joining = ["--external", "--socket", str(join_socket(state, number))] if external else []
            arguments = ["--aggregator", aggregator.address, *worker_options, *joining]
            workers.append(start("worker", f"worker-{number}", *arguments))
        await asyncio.gather(*(worker.wait_ready() for worker in workers))
        if options.web:
            # The last --listen counts: people choose this one.
            folder = ["--state-dir", str(state / "web"), "--listen", options.web]
            logs_only = ["--log-level", options.log_level]
            web = DaemonProcess("web", "web", logs, ["--aggregator", aggregator.address, *folder, *logs_only])
            daemons.append(web.start())
            await web.wait_ready()
        output.say(
            f"{options.tiers}-tier cluster: "
            + ", ".join(f"{daemon.name} on port {daemon.port}" for daemon in daemons)
        )
        if options.web:
            output.say(f"page at http://localhost:{daemons[-1].port}, token in {OWN_TOKEN_FILE}")
        yield AggregatorTarget(aggregator.address, Security(), ANSWER_SECONDS), daemons
    except asyncio.CancelledError:
        output.say("stopping: the weights of the last step are saved; Ctrl-C again stops without them")
        raise
    finally:
        try:
            await asyncio.shield(stop_all(daemons, output.say))
        except asyncio.CancelledError:
            kill_all(daemons)
            raise


async def _submit_or_resume(
    client: JobsClient, options: LocalOptions, submission: Submission | None, output: Output
) -> jobs_pb2.Job:
    """Return the job to follow: the unfinished one with `--resume`, else a new one."""
    known = await retry_unreachable(client.jobs)
    unfinished = [job for job in known if job.state not in ENDED]
    if submission is None:
        if not unfinished:
            raise _nothing_to_resume(options)
        return unfinished[0]
    if unfinished:
        raise Refused(
            f"--state-dir {options.state_dir}: job {unfinished[0].id} ({unfinished[0].name}) is unfinished at step "
            f"{unfinished[0].step} of {unfinished[0].steps}; continue it with --resume, or give another --state-dir"
        )
    return await queue_job(client, submission, output, uploads=False, waits_for_aggregator=True)


async def _run_while_daemons_live(
    work: Coroutine[Any, Any, jobs_pb2.Job],
    daemons: list[DaemonProcess],
    say: Callable[[str], None],
    *,
    restart: bool,
) -> jobs_pb2.Job:
    """Return the result of `work`, unless daemons that it needs end before.

    A worker may end as long as another one lives. With `restart`, daemons are restarted instead, and only those count
    as ended that a restart refuses.

    Raises:
        Failed: a daemon of another role or the last worker ended; the message names it and its log.
    """
    following = start_awaited(work)
    ends = {
        start_awaited(supervise(daemon, say) if restart else daemon.wait_ended()): daemon
        for daemon in daemons
    }
    try:
        while not following.done():
            await asyncio.wait({following, *ends}, return_when=asyncio.FIRST_COMPLETED)
            for end in [end for end in ends if end.done() and not following.done()]:
                daemon = ends.pop(end)
                end.result()  # raises the error of a failed restart
                if daemon.role == "web":
                    say(f"{daemon.describe_end()}; the job continues without the HTTP API")
                    continue
                if daemon.role != "worker" or not any(each.role == "worker" for each in ends.values()):
                    raise Failed(daemon.describe_end())
                say(f"{daemon.describe_end()}; the job continues with the other workers")
        return following.result()
    finally:
        for task in (following, *ends):
            task.cancel()
        # Wait for the tasks, so that none starts a daemon while the cluster stops.
        await asyncio.gather(following, *ends, return_exceptions=True)


def _sample(checkpoint: Path, options: LocalOptions, output: Output) -> str | None:
    """Generate, print and return sample text of a language model with a tokenizer; return None for other models."""
    from cli.generate import can_generate, generate_text

    if not options.sample_tokens or not can_generate(checkpoint):
        return None
    output.say(f"sample of {counted(options.sample_tokens, 'token')}:")
    return generate_text(checkpoint, "\n", output, max_new_tokens=options.sample_tokens)


def join_socket(state_dir: Path, number: int) -> Path:
    """Return the socket at which processes join a worker of a cluster on this machine."""
    return state_dir.absolute() / f"worker-{number}.sock"


@contextmanager
def lock_state_dir(state_dir: Path) -> Iterator[None]:
    """Create the state dir and lock it against a second cluster on this machine.

    Raises:
        Refused: the folder can't be created, or another command uses it.
    """
    try:
        (state_dir / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(
            f"--state-dir {state_dir}: can't be created ({error.strerror}); give another folder"
        ) from None
    lock = try_lock(state_dir / "lock")
    if lock is None:
        raise Refused(
            f"--state-dir {state_dir}: in use by another `tiermesh local` or `chaos`; wait for its end, "
            "or give another folder"
        )
    with lock:
        yield


def _nothing_to_resume(options: LocalOptions) -> Refused:
    return Refused(
        f"--resume: no unfinished job in {options.state_dir}; leave out --resume to start one, or give the "
        "--state-dir of an unfinished job"
    )


def _resume_command(options: LocalOptions) -> str:
    return (
        f"tiermesh local {options.job} --resume --state-dir {options.state_dir} --tiers {options.tiers} "
        f"--workers {options.workers}"
        + (f" --shards {options.shards}" if options.shards else "")
        + (" --supervise" if options.supervise else "")
        + (f" --web --web-listen {options.web}" if options.web else "")
        + "".join(f" --allow-models {name}" for name in options.allowed_models)
        + (f" --code {options.code}" if options.code is not None else "")
    )
