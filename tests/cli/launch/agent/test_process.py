"""An agent as a real process: what it does for a launcher, and what it leaves when the launcher is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cli.launch.agent.job_watch import read_ended_job
from cli.launch.agent.link import AgentLink, RunEnded
from cli.launch.agent.process import RESULT_FILE, SOCKET
from cli.launch.agent.protocol import (
    Check,
    Detach,
    Detached,
    Ended,
    JobSeen,
    Probe,
    Probed,
    Ready,
    RunOver,
    Start,
    Stop,
    Stopped,
    WatchJob,
    WriteFile,
    encode,
)
from protos import jobs_pb2
from services.errors import Failed, Refused
from tests.support.cluster.daemon import eventually
from tests.support.fake_aggregator import FakeAggregator, serving

OPTIMIZER = FakeAggregator().status.optimizer
ENDS_WITH_PARENT = """
import os, pathlib, sys
pathlib.Path("pid").write_text(str(os.getpid()))
ready = pathlib.Path(sys.argv[1] + ".partial")
ready.write_text('{"port": 1, "tensor_port": 2, "metrics_port": 3}')
ready.rename(sys.argv[1])
while os.read(0, 100):
    pass
"""
DIES = "import sys; print('ERROR the mesh is on fire'); sys.exit(3)"
IGNORES_SIGTERM = (
    f"import signal; signal.signal(15, signal.SIG_IGN){ENDS_WITH_PARENT}import time; time.sleep(600)"
)


def run(test: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


HELD = """
import sys, time
from pathlib import Path
from cli.launch.agent import process
held = process.{held}
def hold(first, *rest):
    folder = Path(first).parent
    (folder / "holds").touch()
    deadline = time.monotonic() + 60
    while not (folder / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return held(first, *rest)
process.{held} = hold
from cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""Program of an agent that waits in a function, whose first argument is a file of the run's folder."""


@asynccontextmanager
async def agent(
    folder: Path, *more: str, program: tuple[str, ...] = ("-m", "cli.main")
) -> AsyncIterator[AgentLink]:
    command = [sys.executable, *program, "launch-agent", "--folder", str(folder), *more]
    link = await AgentLink.open("here", command, lambda code, errors: Failed(f"{code}: {errors[-1]}"))
    try:
        yield link
    finally:
        await link.close()


def start(folder: Path, program: str = ENDS_WITH_PARENT, rank: int = 0) -> Start:
    own = folder / f"rank{rank}"
    ready = str(own / "ready.json")
    return Start(
        rank, "worker", f"rank{rank}", str(own), ready, (sys.executable, "-c", program, ready), {"A": "1"}, ()
    )


@contextmanager
def socket_path(folder: Path) -> Iterator[str]:
    """Yield a path of a detached agent's socket that is short enough for one."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{opened}/{SOCKET}"
    finally:
        os.close(opened)


def connect(folder: Path) -> socket.socket:
    """Connect to a detached agent, as a launcher does that attaches."""
    connection = socket.socket(socket.AF_UNIX)
    with socket_path(folder) as path:
        connection.connect(path)
    return connection


async def wait_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, gone.set)
    await gone.wait()
    asyncio.get_running_loop().remove_reader(descriptor)
    os.close(descriptor)


def test_a_daemon_is_started_watched_and_stopped(tmp_path: Path) -> None:
    async def test() -> None:
        async with agent(tmp_path) as link:
            assert (link.facts.folder, link.facts.running) == (str(tmp_path), False)
            link.send(start(tmp_path))
            assert await link.receive() == Ready(0)
            pid = int((tmp_path / "rank0" / "pid").read_text())
            link.send(start(tmp_path, DIES, rank=1))
            ended = await link.receive()
            assert isinstance(ended, Ended)
            assert (ended.rank, ended.code) == (1, 3)
            assert "ERROR the mesh is on fire" in ended.text
            link.send(Stop((0, 1)))
            answers = [await link.receive(), await link.receive()]  # in either order
            assert {type(answer) for answer in answers} == {Ended, Stopped}
        await wait_gone(pid)

    run(test)


def test_ports_files_and_commands_are_handled_in_the_runs_folder_alone(tmp_path: Path) -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as used:
            port = used.getsockname()[1]
            async with agent(tmp_path) as link:
                probed = await link.ask(Probe((port,)), Probed)
                assert probed.used_ports == (port,)
                path = tmp_path / "rank0" / "daemon.key"
                link.send(WriteFile(str(path), "secret", secret=True))
                program = ("sh", "-c", "cat daemon.key; echo; echo $A; exit 4")
                ended = await link.ask(Check(0, str(path.parent), program, {"A": "last"}, (), 30.0), Ended)
                assert (ended.code, ended.text) == (4, "last")
                assert path.stat().st_mode & 0o777 == 0o600
                link.send(WriteFile(str(tmp_path / ".." / "outside"), "", secret=False))
                with pytest.raises(Refused, match="outside of the run's folder"):
                    await link.receive()
            assert not path.exists()

    run(test)


@pytest.mark.parametrize("how", ["closed", "agent killed"])
def test_daemons_end_when_the_launcher_or_the_agent_does(tmp_path: Path, how: str) -> None:
    async def test() -> None:
        async with agent(tmp_path) as link:
            link.send(start(tmp_path))
            assert await link.receive() == Ready(0)
            pid = int((tmp_path / "rank0" / "pid").read_text())
            if how == "agent killed":
                os.kill(link.pid, signal.SIGKILL)
                await wait_gone(pid)
        await wait_gone(pid)

    run(test)


@pytest.mark.long
def test_a_launcher_that_has_closed_leaves_no_daemon(tmp_path: Path) -> None:
    async def test() -> None:
        async with agent(tmp_path) as link:
            link.send(start(tmp_path, IGNORES_SIGTERM))
            assert await link.receive() == Ready(0)
            pid = int((tmp_path / "rank0" / "pid").read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    run(test)


@pytest.mark.long
def test_a_stubborn_daemon_of_a_silent_launcher_ends_within_30_seconds(tmp_path: Path) -> None:
    async def test() -> None:
        async with agent(tmp_path) as link:
            link.send(start(tmp_path, IGNORES_SIGTERM))
            assert await link.receive() == Ready(0)
            pid = int((tmp_path / "rank0" / "pid").read_text())
            link.fall_silent()
            with pytest.raises(Failed, match="here: heard nothing of the launcher for 15 s; see its host"):
                await link.receive()
            await asyncio.wait_for(wait_gone(pid), 30)

    run(test)


def test_a_signal_while_daemons_stop_leaves_no_secret(tmp_path: Path) -> None:
    async def test() -> None:
        secret = tmp_path / "rank0" / "daemon.key"
        async with agent(tmp_path) as link:
            link.send(WriteFile(str(secret), "secret", secret=True))
            link.send(start(tmp_path, IGNORES_SIGTERM))
            assert await link.receive() == Ready(0)
            pid = int((tmp_path / "rank0" / "pid").read_text())
            assert secret.exists()
            link.send(
                Detach()
            )  # a defect of a launcher, so that the agent ends the connection and stops its daemons
            with pytest.raises(Refused, match="before WatchJob"):
                await link.receive()
            os.kill(link.pid, signal.SIGTERM)
            await wait_gone(link.pid)
            os.kill(pid, signal.SIGKILL)
            assert not secret.exists()

    run(test)


@pytest.fixture
def aggregator() -> Iterator[FakeAggregator]:
    fake = FakeAggregator()
    fake.jobs["job-1"] = jobs_pb2.Job(id="job-1", state=jobs_pb2.RUNNING)
    with serving(fake):
        yield fake


async def detach(link: AgentLink, aggregator: FakeAggregator) -> None:
    assert await link.ask(WatchJob("job-1", aggregator.address, OPTIMIZER, ()), JobSeen) == JobSeen()
    assert await link.ask(Detach(), Detached) == Detached()


def test_a_detached_agent_outlives_its_launcher_and_is_attached_and_stopped(
    tmp_path: Path, aggregator: FakeAggregator
) -> None:
    async def test() -> None:
        async with agent(tmp_path) as link:
            link.send(start(tmp_path))
            link.send(start(tmp_path, DIES, rank=1))
            await link.receive()
            await link.receive()
            await detach(link, aggregator)
        pid = int((tmp_path / "rank0" / "pid").read_text())
        async with agent(tmp_path, "--attach") as link:
            assert link.facts.running
            states = [await link.receive(), await link.receive()]
            assert sorted(type(state).__name__ for state in states) == ["Ended", "Ready"]
            with pytest.raises(Refused, match="another launcher is attached"):
                async with agent(tmp_path, "--attach"):
                    pass
        os.kill(pid, 0)  # this launcher went without stopping it
        async with agent(tmp_path, "--attach") as link:
            await link.receive()
            await link.receive()
            link.send(Stop((0, 1)))
            answers = [await link.receive(), await link.receive()]  # in either order
            assert {type(answer) for answer in answers} == {Ended, Stopped}
        await wait_gone(pid)
        with pytest.raises(Failed, match="the run has ended"):
            async with agent(tmp_path, "--attach"):
                pass

    run(test)


def test_a_detached_agent_can_be_attached_to_at_once(tmp_path: Path, aggregator: FakeAggregator) -> None:
    async def test() -> None:
        program = ("-c", HELD.format(held="_release_standard_streams"))
        async with agent(tmp_path, program=program) as link:
            await detach(link, aggregator)
            connect(tmp_path).close()
            os.kill(link.pid, signal.SIGKILL)

    run(test)


def test_a_launcher_that_attaches_while_the_agent_ends_finds_the_result(
    tmp_path: Path, aggregator: FakeAggregator
) -> None:
    async def test() -> None:
        aggregator.jobs["job-1"].state = jobs_pb2.SUCCEEDED
        lingers_not = "from cli.launch.agent import process; process.LINGER_SECONDS = 0.0\n"
        async with agent(tmp_path, program=("-c", lingers_not + HELD.format(held="_write"))) as link:
            await detach(link, aggregator)
            await asyncio.to_thread(eventually, (tmp_path / "holds").exists, "the end of the agent")
            with connect(tmp_path) as connection:
                (tmp_path / "go").touch()
                with suppress(ConnectionResetError):
                    assert await asyncio.to_thread(connection.recv, 1) == b"", "it answers no more launchers"
        with pytest.raises(RunEnded) as ended:
            async with agent(tmp_path, "--attach"):
                pass
        assert read_ended_job(ended.value.over.job) == aggregator.jobs["job-1"]

    run(test)


@pytest.mark.parametrize("result", [RunOver("", "the optimizer ended"), None])
def test_a_launcher_that_gets_no_answer_looks_for_the_result(tmp_path: Path, result: RunOver | None) -> None:
    async def test() -> None:
        async def end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if result is not None:
                (tmp_path / RESULT_FILE).write_bytes(encode(result))
            writer.close()

        with socket_path(tmp_path) as path:
            server = await asyncio.start_unix_server(end, path)
        async with server:
            with pytest.raises(Failed if result is None else RunEnded, match="the run has ended"):
                async with agent(tmp_path, "--attach"):
                    pass

    run(test)


@pytest.mark.long
def test_a_detached_agent_ends_with_its_job_and_leaves_how(
    tmp_path: Path, aggregator: FakeAggregator
) -> None:
    async def test() -> None:
        async with agent(tmp_path) as link:
            link.send(start(tmp_path))
            assert await link.receive() == Ready(0)
            await detach(link, aggregator)
        pid = int((tmp_path / "rank0" / "pid").read_text())
        aggregator.jobs["job-1"] = jobs_pb2.Job(id="job-1", state=jobs_pb2.FAILED, detail="loss is NaN")
        await wait_gone(pid)
        with pytest.raises(RunEnded) as ended:
            async with agent(tmp_path, "--attach"):
                pass
        assert read_ended_job(ended.value.over.job) == aggregator.jobs["job-1"]

    run(test)


def test_an_agent_that_cannot_ask_for_the_job_does_not_detach(
    tmp_path: Path, aggregator: FakeAggregator
) -> None:
    async def test() -> None:
        async with agent(tmp_path) as link:
            link.send(start(tmp_path))
            assert await link.receive() == Ready(0)
            pid = int((tmp_path / "rank0" / "pid").read_text())
            link.send(WatchJob("another", aggregator.address, OPTIMIZER, ()))
            with pytest.raises(Refused, match="no job 'another'"):
                await link.receive()
        await wait_gone(pid)

    run(test)
