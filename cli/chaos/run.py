"""`tiermesh chaos`: a job on a local cluster to which things happen by a plan, held against the undisturbed job."""

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
from cli.client import JobsClient
from cli.jobs import ENDED, follow, raise_unless_succeeded, read_job
from cli.local import ANSWER_SECONDS, locked
from cli.options import AggregatorTarget
from cli.output import Output, job_fields, job_line
from cli.progress import ProgressView
from protos import jobs_pb2
from services.errors import Failed, Refused
from services.transport.security import Security


@dataclass(frozen=True)
class ChaosOptions:
    """What `tiermesh chaos` is told.

    Attributes:
        job: config file.
        overrides: `key=value` settings on top of it.
        seed: of the plan.
        faults: how many.
        workers: number of worker daemons.
        tiers: 2: the optimizer runs inside the aggregator; 3: as a daemon of its own.
        heartbeat_seconds: of the aggregator; faults last up to five of them.
        verify: run the job undisturbed first, and compare.
        state_dir: queue, checkpoints, logs.
        log_level: of the daemons' logs.
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
    """What came of it: the job, what happened to it, and the undisturbed job if there was one."""

    job: jobs_pb2.Job
    struck: tuple[Fault, ...]
    undisturbed: jobs_pb2.Job | None


def run(options: ChaosOptions, output: Output) -> None:
    """Run the job to its end, whatever happens, and print how it ended.

    Raises:
        Refused: the config is wrong, or the state dir is in use or has an unfinished job.
        Failed: a job did not succeed, or not to the undisturbed one's bits; a daemon ended by itself or did not come
            back; interrupted.
    """
    config = read_job(options.job, options.overrides, output)
    started = time.monotonic()
    with locked(options.state_dir):
        outcome = asyncio.run(_run(options, (config.name, config.to_json()), output))
    job, undisturbed = outcome.job, outcome.undisturbed
    same_bits = None if undisturbed is None else job.model_sha256 == undisturbed.model_sha256
    output.say(job_line(job))
    output.say(f"{len(outcome.struck)} of {options.faults} faults happened before it ended")
    if same_bits:
        output.say(f"same bits as undisturbed: model_sha256 {job.model_sha256}")
    output.result(
        {
            **job_fields(job),
            "seed": options.seed,
            "faults": [asdict(fault) for fault in outcome.struck],
            "undisturbed_sha256": undisturbed.model_sha256 if undisturbed else None,
            "same_bits": same_bits,
            "seconds": round(time.monotonic() - started, 3),
            "state_dir": str(options.state_dir),
        }
    )
    raise_unless_succeeded(job)
    if undisturbed is not None and not same_bits:
        raise Failed(
            f"job {job.id}: model_sha256 {job.model_sha256} after the faults of --seed {options.seed}, but "
            f"{undisturbed.model_sha256} undisturbed (job {undisturbed.id}), expected the same; logs: "
            f"{options.state_dir / 'logs'}"
        )


async def _run(options: ChaosOptions, submission: tuple[str, str], output: Output) -> _Outcome:
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
    )
    try:
        async with (
            cluster,
            JobsClient(AggregatorTarget(cluster.address, Security(), ANSWER_SECONDS)) as client,
        ):
            for job in await client.jobs():
                if job.state not in ENDED:
                    raise Refused(
                        f"--state-dir {options.state_dir}: job {job.id} ({job.name}) is unfinished at step {job.step} "
                        f"of {job.steps}; end it with `tiermesh local JOB.yaml --resume --state-dir "
                        f"{options.state_dir}`, or give another --state-dir"
                    )
            undisturbed = None
            if options.verify:
                output.say("undisturbed first")
                undisturbed, _ = await _suffer(cluster, client, await client.submit(*submission), (), output)
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
            return _Outcome(*await _suffer(cluster, client, job, plan, output), undisturbed)
    except asyncio.CancelledError:
        raise Failed(f"interrupted; logs: {options.state_dir / 'logs'}") from None


class _Steps(ProgressView):
    """Shows a job, and tells how far it got."""

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
        """Wait until that many updates are made; False if the job ended before we heard of it."""
        while self._most < step and not self._over:
            self._changed.clear()
            await self._changed.wait()
        return not self._over


async def _suffer(
    cluster: Cluster, client: JobsClient, job: jobs_pb2.Job, plan: Sequence[Fault], output: Output
) -> tuple[jobs_pb2.Job, tuple[Fault, ...]]:
    """Follow the job to its end while the plan is carried out; returns it and what of the plan happened."""
    view = _Steps(output)
    with view:
        view.say(f"job {job.id}")
        following = asyncio.ensure_future(follow(client, job.id, view))
        watching = asyncio.ensure_future(cluster.watch())
        striking = asyncio.ensure_future(_strike(cluster, plan, view))
        tasks: tuple[asyncio.Future[Any], ...] = (following, watching, striking)
        try:
            while not (following.done() and striking.done()):
                going = [task for task in tasks if not task.done()]
                done, _ = await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # raises what went wrong
            return following.result(), striking.result()
        finally:
            for task in tasks:
                task.cancel()
            # No daemon stays frozen, and none is started once the cluster is being stopped.
            await asyncio.gather(*tasks, return_exceptions=True)


async def _strike(cluster: Cluster, plan: Sequence[Fault], view: _Steps) -> tuple[Fault, ...]:
    """Carry out the plan as far as the job gets, and wait until all of it is over."""
    strikes: dict[asyncio.Future[None], Fault] = {}
    try:
        for fault in plan:
            if not await view.reached(fault.at_step):
                break
            view.say(f"step {fault.at_step}: {fault}")
            strikes[asyncio.ensure_future(cluster.strike(fault))] = fault
        await asyncio.gather(*strikes)
    finally:
        for strike in strikes:
            strike.cancel()
        await asyncio.gather(*strikes, return_exceptions=True)
    return tuple(strikes.values())
