"""The HTTP API of a launch: what the launcher makes for it, and a program's calls with that."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import tiermesh
from cli.launch.agent.protocol import Start
from cli.launch.agent.rank_process import RankProcess
from cli.launch.command_line import AUTHORITY_FILE, READY_FILE, Place, Ports, daemon_commands, web_url
from cli.launch.plan import LaunchPlan, Rank, Role
from cli.launch.run_certificates import WEB_TOKEN_FILE, RunCertificates
from cli.launch.sites import LOCAL_PROGRAM
from cli.main import main
from tests.cli.launch.conftest import MakeFolder
from tests.support.cluster.bits import regression_config
from tests.support.launches import ENDLESS, job_of, loudboxes, training
from tests.support.ports import free_port

HOST = "127.0.0.2"
RANKS: tuple[Role, ...] = ("worker", "aggregator", "web")


def make_plan() -> LaunchPlan:
    ranks = tuple(
        Rank(number, role, HOST, f"rank{number}-{role}", 0, {}, "") for number, role in enumerate(RANKS)
    )
    return LaunchPlan(ranks, tiers=2)


def test_a_program_calls_it_with_the_files_of_the_launcher(tmp_path: Path) -> None:
    """Start aggregator and HTTP API as agents do, with TLS and without OpenSSH."""
    plan, ports = make_plan(), Ports(*(free_port() for _ in range(4)))
    places = {
        rank.number: Place(LOCAL_PROGRAM, str(tmp_path / "run" / rank.name), HOST) for rank in plan.ranks
    }
    certificates = RunCertificates("test", web=True)
    for name, text in certificates.launcher_files().items():
        (tmp_path / name).write_text(text)

    async def start(stack: AsyncExitStack) -> None:
        for command in daemon_commands(plan, places, ports)[::2]:  # without the worker
            rank, place = command.rank, places[command.rank.number]
            Path(place.folder).mkdir(parents=True)
            for path, text in certificates.daemon_files(rank, place).items():
                Path(path).write_text(text)
                Path(path).chmod(0o600)
            ready = place.path(READY_FILE)
            order = Start(rank.number, rank.role, rank.name, place.folder, ready, command.arguments, {}, ())
            daemon = RankProcess(order).start()
            stack.push_async_callback(daemon.stop)
            await daemon.wait_ready()

    async def run() -> None:
        token = (tmp_path / WEB_TOKEN_FILE).read_text().strip()
        url, authority = web_url(plan, places, ports), tmp_path / AUTHORITY_FILE
        async with AsyncExitStack() as stack:
            await start(stack)
            async with tiermesh.AsyncClient(url, token=token, ca=authority) as client:
                assert (await client.status()).leader == "rank1-aggregator"
                job = await client.submit(regression_config())
                assert job.fields["owner"] == "launcher"
                assert (await client.cancel(job.id, now=True)).state == "cancelled"
            async with tiermesh.AsyncClient(url, token="x", ca=authority) as client:
                with pytest.raises(tiermesh.NotAllowed):
                    await client.status()

    asyncio.run(run())


def test_a_run_without_it_has_no_token() -> None:
    certificates, place = RunCertificates("test"), Place(("t",), "/run", "a")
    assert WEB_TOKEN_FILE not in certificates.launcher_files()
    assert not any("tokens" in path for path in certificates.daemon_files(make_plan().aggregator, place))


@pytest.mark.long
def test_on_this_machine_a_program_finds_it_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = loudboxes(tmp_path / "5loudboxes", "")
    (folder / "hosts.txt").unlink()
    port = free_port()
    web = ("--web", "--web-port", str(port), "--state-dir", str(tmp_path / "runs"), *ENDLESS)
    with training([sys.executable, "-m", "cli.main", "launch", *job_of(folder, *web)]) as process:
        with tiermesh.Client(f"http://127.0.0.1:{port}") as client:
            assert client.get("latest").state == "running"
            assert len(client.status().workers) == 3
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 1


def test_a_dry_run_shows_its_command(
    make_folder: MakeFolder, job_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hosts, bindings = (
        "a slots=1\nb slots=1\n",
        "rank_bindings: [{rank: 0, mesh_id: 0}, {rank: 1, mesh_id: 1}]",
    )
    folder = make_folder(hosts=hosts, bindings=bindings, meshes=2)
    launch = ["launch", str(folder), "--config", str(job_file), "--web", "--dry-run", "--json"]
    assert main(launch) == 0
    lines = capfd.readouterr()
    assert "3 ranks on 2 hosts: 1 worker, an aggregator and the HTTP API (2 tiers)" in lines.err + lines.out
    web = json.loads(lines.out.splitlines()[-1])["ranks"][-1]
    assert (web["role"], web["host"], web["beside"]) == ("web", "b", False)
    for option, port in (("--web-port", "7070"), ("--people-port", "7080")):
        assert main([*launch, option, port]) == 2
        assert f"{option} {port}: also" in json.loads(capfd.readouterr().out.splitlines()[-1])["error"]
