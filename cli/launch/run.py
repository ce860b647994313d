"""`tiermesh launch`: start a cluster on its hosts, run a job on it, and stop what was started."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from cli.jobs import Submission, follow, queue_job, raise_unless_succeeded
from cli.launch.agent.job_watch import read_ended_job
from cli.launch.agent.link import AgentLink, RunEnded
from cli.launch.agent.protocol import Check, Ended, RunOver, Start, WatchJob, WriteFile
from cli.launch.cluster import START_ORDER, Cluster, Member
from cli.launch.command_line import (
    AUTHORITY_FILE,
    READY_FILE,
    DaemonCommand,
    Place,
    aggregator_address,
    daemon_commands,
    web_url,
)
from cli.launch.dry_run import describe_beside, describe_plan
from cli.launch.joining import wait_until_joined
from cli.launch.memory import estimate_needs
from cli.launch.openssh import AgentGone
from cli.launch.plan import LaunchPlan
from cli.launch.prepare import LaunchOptions, prepare
from cli.launch.record import Run, forget_run, new_run_name, read_run, run_folder, write_run
from cli.launch.run_certificates import WEB_TOKEN_FILE, RunCertificates
from cli.launch.sites import (
    THIS_MACHINE,
    Site,
    check_all,
    close_all,
    connect_all,
    for_all,
    plan_sites,
    raise_errors,
    reach_all,
)
from cli.options import OWN_TOKEN_FILE
from cli.output import Output, job_line
from cli.progress import ProgressView
from cli.tracking import leave_trackers_to_aggregator
from mesh.backend import drives_chips
from protos import jobs_pb2
from services.config.job import JobConfig
from services.errors import Failed, Refused, TiermeshError
from services.jobs.client import JobsClient
from services.jobs.fields import job_fields
from services.tasks import start_awaited
from services.threads import finish_in_thread

MESH_CHECK_SECONDS = 600.0
"""Limit of `tiermesh check` on a host; the first one compiles kernels."""
Result = TypeVar("Result")
Say = Callable[[str], None]


def launch(options: LaunchOptions, output: Output) -> None:
    """Start the cluster, run the job to its end, and stop the cluster; with `detach`, leave both running.

    Raises:
        Refused: the configuration or the job is wrong, or a host can't take part.
        Failed: the job failed, a daemon that it needs ended, or the command was interrupted.
    """
    plan, config = prepare(options, output)
    # Whether somebody follows or not, the trackers are in one place.
    config = leave_trackers_to_aggregator(config)
    output.say(describe_plan(plan))
    name = new_run_name()
    folder = run_folder(options.state_dir, name)
    job, holder = run_until_interrupted(_launch(options, plan, config, name, folder, output))
    if not options.detach:
        _report(job, name, holder, output)
        return
    output.say(
        f"run {name} goes on with job {job.id}; `tiermesh launch --attach {name}` follows it, --stop ends it"
    )
    output.result({**job_fields(job), "run": name})


def attach(state_dir: Path, name: str, output: Output) -> None:
    """Follow the job of a detached run. At its end, stop the run; an interrupt leaves it running.

    Raises:
        Refused: there is no such run.
        Failed: the job failed, a daemon that it needs ended, or the command was interrupted.
    """
    run = read_run(state_dir, name)
    folder = run_folder(state_dir, name)
    job = run_until_interrupted(_attach(run, folder, output))
    holders = {member.role: member.site for member in run.members}
    _report(job, name, holders.get("optimizer", holders["aggregator"]), output)


def stop(state_dir: Path, name: str, output: Output) -> None:
    """Stop the daemons of a detached run. Its job stays unfinished.

    Raises:
        Refused: there is no such run.
        TiermeshError: a host can't be reached, so its daemons go on.
    """
    run = read_run(state_dir, name)
    run_until_interrupted(_stop(run))
    forget_run(run_folder(state_dir, name))
    output.say(f"run {name} is stopped")
    output.result({"run": name, "job": run.job or None})


def run_until_interrupted(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine that SIGINT and SIGTERM cancel.

    Raises:
        Failed: it was cancelled.
    """

    async def interruptible() -> Result:
        task = start_awaited(work)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await task

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise Failed("interrupted") from None


async def _launch(
    options: LaunchOptions, plan: LaunchPlan, config: JobConfig, name: str, folder: Path, output: Output
) -> tuple[jobs_pb2.Job, str]:
    """Return the job, and the host that has its checkpoints."""
    sites = plan_sites(plan, options, name)
    addresses = await for_all(sites, Site.find_address, output)
    links = await connect_all(sites, output)
    try:
        memory_bytes = {host: link.facts.memory_bytes for host, link in links.items()}
        plan = plan.move_beside(memory_bytes)
        if plan.beside and not plan.is_local:
            output.say(describe_beside(plan, memory_bytes))
        places = _places(plan, sites, links, addresses)
        commands = daemon_commands(plan, places, options.ports)
        await check_all(links.values(), _ports(commands), estimate_needs(plan, config), output)
        await _check_meshes(commands, places, links, config, output)
    except BaseException:
        await close_all(links.values())
        raise
    certificates = None if plan.is_local else RunCertificates(name, web=options.web)
    run = Run(
        name=name,
        job="",
        aggregator=aggregator_address(plan, places, options.ports),
        with_tls=certificates is not None,
        sites=sites,
        members=tuple(
            Member(rank.number, rank.role, rank.name, rank.host or THIS_MACHINE) for rank in plan.ranks
        ),
    )
    detached = False
    try:
        async with Cluster(links, run.members) as cluster:
            own_files = certificates.launcher_files() if certificates else {}
            # Beside the heartbeats: a busy disk may take longer than agents wait for one.
            await finish_in_thread(write_run, run, folder, own_files)
            holder = (plan.optimizer or plan.aggregator).host or THIS_MACHINE
            for role in START_ORDER:
                starts = []
                for command in commands:
                    if command.rank.role == role:
                        place = places[command.rank.number]
                        secrets = certificates.daemon_files(command.rank, place) if certificates else {}
                        starts.append((_start(command, place), {**command.files, **secrets}))
                await cluster.start(starts)
            output.say(f"run {name}: all daemons serve")
            if plan.web is not None:
                output.say(
                    f"page and HTTP API at {web_url(plan, places, options.ports)}, {_describe_access(run, folder)}"
                )
            async with JobsClient(run.target(folder)) as client:
                job = await _until_gone(cluster, _submit(client, config, plan, output), output.say)
                if not options.detach:
                    return await _follow(cluster, client, job.id, output), holder
                await finish_in_thread(write_run, replace(run, job=job.id), folder, {})
                await cluster.detach(_watch_requests(job.id, run, links, certificates))
                detached = True
                return job, holder
    finally:
        if not detached:
            forget_run(folder)


async def _attach(run: Run, folder: Path, output: Output) -> jobs_pb2.Job:
    links, errors = await reach_all(run.sites)
    results = {site: error.over for site, error in errors.items() if isinstance(error, RunEnded)}
    if results:
        await _stop_all(run, links)  # they notice the end a little later
        forget_run(folder)
        return _job_of(run, results)
    # The job can go on without the workers of a host that was restarted, for example.
    needed = {member.site for member in run.members if member.role != "worker"}
    if any(site in needed or not isinstance(error, AgentGone) for site, error in errors.items()):
        await close_all(links.values())
        raise_errors(list(errors.values()), len(run.sites), output)
    over = False
    async with Cluster(links, run.members, errors) as cluster:
        try:
            async with JobsClient(run.target(folder)) as client:
                job = await _follow(cluster, client, run.job, output)
            over = True
        except TiermeshError:  # such as a daemon that has ended; an interrupt is none
            over = True
            raise
        finally:
            if over:
                forget_run(folder)
            else:
                cluster.leave()
    return job


async def _stop(run: Run) -> None:
    """Stop the daemons on all hosts that can be reached, then raise the error of the first one that can't."""
    links, errors = await reach_all(run.sites)
    await _stop_all(run, links)
    for error in errors.values():
        if not isinstance(error, AgentGone):
            raise error


async def _stop_all(run: Run, links: Mapping[str, AgentLink]) -> None:
    async with Cluster(links, [member for member in run.members if member.site in links]):
        pass  # its end stops the daemons


def _job_of(run: Run, results: Mapping[str, RunOver]) -> jobs_pb2.Job:
    """Return the job of a run that has ended by itself; raise Failed with the reason if no agent knows it."""
    for result in results.values():
        if result.job:
            return read_ended_job(result.job)
    leader = next(member.site for member in run.members if member.role == "aggregator")
    site = leader if leader in results else min(results)
    raise Failed(f"host {site}: the run ended before its job: {results[site].text}")


# ---- parts of a launch ----


def _places(
    plan: LaunchPlan, sites: Sequence[Site], links: Mapping[str, AgentLink], addresses: Sequence[str]
) -> dict[int, Place]:
    found = {}
    for site, address in zip(sites, addresses, strict=True):
        folder = PurePosixPath(links[site.name].facts.folder)
        for rank in plan.ranks:
            if rank.host == site.host:
                cache = str(folder.parents[1] / "cache")
                found[rank.number] = Place(site.program, str(folder / rank.name), address, cache)
    return found


def _ports(commands: Sequence[DaemonCommand]) -> dict[str, list[int]]:
    ports: dict[str, list[int]] = {}
    for command in commands:
        ports.setdefault(command.rank.host or THIS_MACHINE, []).extend(command.ports)
    return ports


def _describe_access(run: Run, folder: Path) -> str:
    """Return where the files are that people and programs need to call the HTTP API."""
    if not run.with_tls:
        return f"token in {OWN_TOKEN_FILE}"
    return f"token in {folder / WEB_TOKEN_FILE}, authority in {folder / AUTHORITY_FILE}"


async def _check_meshes(
    commands: Sequence[DaemonCommand],
    places: Mapping[int, Place],
    links: Mapping[str, AgentLink],
    config: JobConfig,
    output: Output,
) -> None:
    """Open the mesh of every worker that has one, and run an all-reduce on it (Refused)."""
    backend, shape = config.device.backend, config.device.mesh_shape

    async def check(link: AgentLink) -> None:
        if not drives_chips(backend, has_chips=link.facts.has_chips):
            return
        for command in commands:
            rank = command.rank
            if rank.role != "worker" or (rank.host or THIS_MACHINE) != link.host:
                continue
            place = places[rank.number]
            for path, text in command.files.items():
                link.send(WriteFile(path, text, secret=False))
            arguments = (
                *place.program,
                *("check", "--mesh", "--mesh-shape", f"{shape[0]}x{shape[1]}", "--backend", backend),
            )
            question = Check(
                rank.number, place.folder, arguments, command.environment, command.unset, MESH_CHECK_SECONDS
            )
            answer = await link.ask(question, Ended)
            if answer.code:
                reason = answer.text.removeprefix("tiermesh: ")
                raise Refused(f"host {link.host}: rank {rank.number}: its mesh fails the check: {reason}")

    await for_all(list(links.values()), check, output)


def _watch_requests(
    job: str, run: Run, links: Mapping[str, AgentLink], certificates: RunCertificates | None
) -> dict[str, tuple[WatchJob, Mapping[str, str]]]:
    """Return the request to each host's agent to watch over the job, and the files that it needs for that."""
    names = {member.role: member.name for member in run.members}
    optimizer = names.get("optimizer", names["aggregator"])  # with 2 tiers it runs inside the aggregator
    requests: dict[str, tuple[WatchJob, Mapping[str, str]]] = {}
    for name, link in links.items():
        files = certificates.agent_files(link.facts.folder) if certificates else {}
        requests[name] = (WatchJob(job, run.aggregator, optimizer, tuple(files)), files)
    return requests


def _start(command: DaemonCommand, place: Place) -> Start:
    rank = command.rank
    return Start(
        rank=rank.number,
        role=rank.role,
        name=rank.name,
        folder=place.folder,
        ready_file=place.path(READY_FILE),
        arguments=command.arguments,
        environment=command.environment,
        unset=command.unset,
    )


async def _submit(client: JobsClient, config: JobConfig, plan: LaunchPlan, output: Output) -> jobs_pb2.Job:
    """Queue the job once all daemons have joined."""
    await wait_until_joined(client, plan)
    return await queue_job(client, Submission(config), output, uploads=not plan.is_local)


async def _follow(cluster: Cluster, client: JobsClient, job: str, output: Output) -> jobs_pb2.Job:
    with ProgressView(output) as view:
        view.say(f"job {job}")
        return await _until_gone(cluster, follow(client, job, view), view.say)


async def _until_gone(cluster: Cluster, work: Coroutine[Any, Any, Result], say: Say) -> Result:
    """Return the result of `work`, unless daemons that it needs end before (TiermeshError)."""
    working = start_awaited(work)
    watching = start_awaited(cluster.watch(say))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done() and not working.done():
            watching.result()  # raises why the cluster can't go on
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


def _report(job: jobs_pb2.Job, run: str, holder: str, output: Output) -> None:
    output.say(job_line(job))
    if job.checkpoint:
        output.say(f"checkpoint of step {job.checkpoint_step}: {job.checkpoint} on {holder}")
    output.result({**job_fields(job), "run": run, "host": holder})
    raise_unless_succeeded(job)
