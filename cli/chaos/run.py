"""`tiermesh chaos`: run a job while faults happen, and compare its bits with a run without faults."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cli.chaos.cluster import Cluster
from cli.chaos.plan import Fault, draw_plan
from cli.jobs import ENDED, follow, raise_unless_succeeded, read_job
from cli.local import ANSWER_SECONDS, lock_state_dir
from cli.output import Output, job_line
from cli.progress import ProgressView
from protos import jobs_pb2
from services.config.job import JobConfig
from services.errors import Failed, Refused
from services.jobs.client import JobsClient
from services.jobs.fields import job_fields
from services.jobs.target import AggregatorTarget
from services.printable import counted
from services.tasks import start_awaited
from services.transport.security import Security


@dataclass(frozen=True)
class ChaosOptions:
    """Options of `tiermesh chaos`.

    Attributes:
        job: config file.
        overrides: `key=value` settings that override the file.
        seed: seed of the plan of faults.
        faults: number of faults.
        workers: number of worker daemons.
        tiers: 3 to run the optimizer as a daemon of its own, 2 to run it inside the aggregator.
        heartbeat_seconds: heartbeat of the aggregator; a fault lasts up to five of them.
        verify: whether to run the job without faults first, and compare.
        state_dir: folder for queue, checkpoints and logs.
        log_level: lowest level that the daemons log.
    """

    job: Path
    overrides: tuple[str, ...]
    seed: int
    faults: int
    workers: int
    tiers: int
    heartbeat_seconds: float
    verify: bool
    state_dir: Path
    log_level: str


@dataclass(frozen=True)
class _Outcome:
    """The job as it ended, the faults that happened, and the job without faults if there was one."""

    job: jobs_pb2.Job
    faults: tuple[Fault, ...]
    undisturbed: jobs_pb2.Job | None


def run(options: ChaosOptions, output: Output) -> None:
    """Run the job to its end while faults happen, and print the outcome.

    Raises:
        Refused: the config is wrong, or the state dir is in use or has an unfinished job.
        Failed: a job did not succeed or gave other bits, a daemon ended unexpectedly or could not be restarted, or the
            command was interrupted.
    """
    config = read_job(options.job, options.overrides, output).config
    started = time.monotonic()
    with lock_state_dir(options.state_dir):
        outcome = asyncio.run(_run(options, config, output))
    job, undisturbed = outcome.job, outcome.undisturbed
    same_bits = None if undisturbed is None else job.model_sha256 == undisturbed.model_sha256
    output.say(job_line(job))
    output.say(f"{len(outcome.faults)} of {counted(options.faults, 'fault')} happened before the job ended")
    if same_bits:
        output.say(f"same bits as without faults: model_sha256 {job.model_sha256}")
    output.result(
        {
            **job_fields(job),
            "seed": options.seed,
            "faults": [asdict(fault) for fault in outcome.faults],
            "undisturbed_sha256": undisturbed.model_sha256 if undisturbed else None,
            "same_bits": same_bits,
            "seconds": round(time.monotonic() - started, 3),
            "state_dir": str(options.state_dir),
        }
    )
    raise_unless_succeeded(job)
    if undisturbed is not None and not same_bits:
        raise Failed(
            f"job {job.id}: model_sha256 {job.model_sha256} with the faults of --seed {options.seed}, but "
            f"{undisturbed.model_sha256} without faults (job {undisturbed.id}), expected the same; see "
            f"{options.state_dir / 'logs'}"
        )


async def _run(options: ChaosOptions, config: JobConfig, output: Output) -> _Outcome:
    submission = config.name, config.to_json()
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    assert main is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, main.cancel)
    cluster = Cluster(
        tiers=options.tiers,
        workers=options.workers,
        state_dir=options.state_dir,
        heartbeat_seconds=options.heartbeat_seconds,
        log_level=options.log_level,
        rows=config.stages > 1,
    )
    try:
        async with (
            cluster,
            JobsClient(AggregatorTarget(cluster.address, Security(), ANSWER_SECONDS)) as client,
        ):
            for job in await client.jobs():
                if job.state not in ENDED:
                    raise Refused(
                        f"--state-dir: job {job.id} is unfinished at step {job.step} of {job.steps}; end it with "
                        f"`tiermesh local JOB.yaml --resume --state-dir {options.state_dir}`, or give another one"
                    )
            undisturbed = None
            if options.verify:
                output.say("first run, without faults")
                undisturbed, _ = await _follow_with_faults(
                    cluster, client, await client.submit(*submission), (), output
                )
                raise_unless_succeeded(undisturbed)
            job = await client.submit(*submission)
            plan = draw_plan(
                options.seed,
                options.faults,
                steps=max(1, job.steps),
                daemons=cluster.daemons,
                links=tuple(cluster.links),
                heartbeat_seconds=options.heartbeat_seconds,
            )
            return _Outcome(*await _follow_with_faults(cluster, client, job, plan, output), undisturbed)
    except asyncio.CancelledError:
        raise Failed(f"interrupted; see {options.state_dir / 'logs'}") from None


class _StepWatcher(ProgressView):
    """Progress view that lets a task wait for a step."""

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._most = -1
        self._over = False
        self._changed = asyncio.Event()

    def update(self, event: jobs_pb2.JobEvent) -> None:
        super().update(event)
        self._over = event.job.state in ENDED
        if event.job.state == jobs_pb2.RUNNING:
            self._most = max(self._most, event.job.step)
        self._changed.set()

    async def reached(self, step: int) -> bool:
        """Wait until the job has made that many updates; return False if it ended before."""
        while self._most < step and not self._over:
            self._changed.clear()
            await self._changed.wait()
        return not self._over


async def _follow_with_faults(
    cluster: Cluster, client: JobsClient, job: jobs_pb2.Job, plan: Sequence[Fault], output: Output
) -> tuple[jobs_pb2.Job, tuple[Fault, ...]]:
    """Follow the job to its end and inject the faults; return the job and the faults that happened."""
    view = _StepWatcher(output)
    with view:
        view.say(f"job {job.id}")
        following = start_awaited(follow(client, job.id, view))
        watching = start_awaited(cluster.watch())
        injecting = start_awaited(_inject(cluster, plan, view))
        tasks: tuple[asyncio.Future[Any], ...] = (following, watching, injecting)
        try:
            while not (following.done() and injecting.done()):
                going = [task for task in tasks if not task.done()]
                done, _ = await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # raises the task's error
            return following.result(), injecting.result()
        finally:
            for task in tasks:
                task.cancel()
            # Wait for the tasks, so that no daemon stays frozen or is started while the cluster stops.
            await asyncio.gather(*tasks, return_exceptions=True)


async def _inject(cluster: Cluster, plan: Sequence[Fault], view: _StepWatcher) -> tuple[Fault, ...]:
    """Inject the faults whose steps the job reaches; return them when all are over."""
    running: dict[asyncio.Future[None], Fault] = {}
    try:
        for fault in plan:
            if not await view.reached(fault.at_step):
                break
            view.say(f"step {fault.at_step}: {fault}")
            running[start_awaited(cluster.inject(fault))] = fault
        await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return tuple(running.values())
