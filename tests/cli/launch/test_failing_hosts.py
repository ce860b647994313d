"""`tiermesh launch` onto hosts that fail, through a real sshd: each ends in one line, with nothing left running."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.support.cluster.daemon import eventually
from tests.support.launches import (
    ENDLESS,
    ONE_RANK_EACH,
    STEP,
    TWO_HOSTS,
    command,
    job_of,
    loudboxes,
    processes_of,
    run,
    training,
    wait_until_nothing_is_left,
)
from tests.support.small_disk import small_disk
from tests.support.sshd import ROOT, Sshd

pytestmark = pytest.mark.long

ONE_HOST = "127.0.0.1 slots=5\n"
OTHER_VERSION = "import services.version as v; v.tiermesh_version = lambda: '0.0.1'"
OTHER_PYTHON = "import platform; platform.python_version = lambda: '3.9.18'"
CLOCK_AHEAD = "import time; right = time.time; time.time = lambda: right() + 3600"
SPACE_AT_FIRST = (
    "import shutil; import types; shutil.disk_usage = lambda path: types.SimpleNamespace(free=1 << 40)"
)
CLOCK_BEHIND = "import time; right = time.time; time.time = lambda: right() - 90"


def disguise(sshd: Sshd, statements: str) -> None:
    """Let the other hosts' Tiermesh run some statements before it starts."""
    program = f"{statements}; import runpy; runpy.run_module('cli.main', run_name='__main__')"
    sshd.remote.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -c "{program}" "$@"\n')


def refuse(sshd: Sshd, folder: Path, *more: str) -> str:
    """Launch onto a host that can't take part; return the one line that says so."""
    code, result, lines = run(command(sshd, *job_of(folder, *more)))
    assert (code, len(lines)) == (2, 2), lines  # the plan, and the error
    error = str(result["error"])
    assert error.startswith("host 127.0.0.1: ")
    assert len(error) <= 300
    wait_until_nothing_is_left(sshd)
    return error


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (OTHER_VERSION, r"has Tiermesh 0\.0\.1, expected "),
        (OTHER_PYTHON, r"runs Tiermesh in Python 3\.9\.18, expected "),
        # The time that question and answer take is in favour of the host.
        (CLOCK_AHEAD, r"its clock is 3[56]\d\d s ahead of this host's, expected at most 60 s"),
        (CLOCK_BEHIND, r"its clock is [6-9]\d s behind this host's, expected at most 60 s"),
    ],
)
def test_another_version_or_clock_is_refused(sshd: Sshd, tmp_path: Path, statements: str, said: str) -> None:
    disguise(sshd, statements)
    assert re.search(said, refuse(sshd, loudboxes(tmp_path / "5loudboxes", ONE_HOST)))


@contextmanager
def packets_dropped() -> Iterator[int]:
    """Yield a port of a host that drops packets: its queue of connections is full, so no more are answered."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port = server.getsockname()[1]
        waiting = [socket.socket() for _ in range(8)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        yield port
        for each in waiting:
            each.close()


@contextmanager
def never_answered() -> Iterator[int]:
    """Yield a port that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("silent", [packets_dropped, never_answered])
def test_a_host_that_does_not_answer_is_refused(
    sshd: Sshd, tmp_path: Path, silent: Callable[[], AbstractContextManager[int]]
) -> None:
    folder = loudboxes(tmp_path / "5loudboxes", ONE_HOST)
    with silent() as port:
        error = refuse(sshd, folder, "--ssh-option", f"Port={port}")
    assert "can't be reached; see that it is on and that the network lets ssh through" in error


def test_a_disk_without_space_is_refused(sshd: Sshd, tmp_path: Path) -> None:
    folder = loudboxes(tmp_path / "5loudboxes", ONE_HOST)
    with small_disk(sshd.folder / "runs") as disk:
        assert "4 MB free at " in refuse(sshd, folder)
        disk.fill()
        error = refuse(sshd, folder)
        assert "No space left on device" in error or "0 MB free at " in error


def test_a_disk_that_fills_after_the_check_ends_the_start(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = loudboxes(tmp_path / "5loudboxes", ONE_HOST)
    disguise(sshd, SPACE_AT_FIRST)
    monkeypatch.setenv("HOME", str(tmp_path))  # the launcher's own disk has space
    with small_disk(sshd.home) as disk:
        disk.path.chmod(0o777)
        disk.fill()
        code, result, lines = run(command(sshd, *job_of(folder, "--state-dir", "runs")))
        assert (code, len(lines)) == (1, 2), lines
        assert result["error"].startswith("host 127.0.0.1: ")
        assert "can't be written (No space left on device)" in result["error"]
        assert not list(disk.path.rglob("*.key"))
    assert not list(tmp_path.glob("runs/*/*"))


def test_a_home_that_cannot_be_written_is_refused(sshd: Sshd, tmp_path: Path) -> None:
    folder = loudboxes(tmp_path / "5loudboxes", ONE_HOST)
    sshd.home.chmod(0o555)
    error = refuse(sshd, folder, "--state-dir", ".tiermesh/launch")
    assert "can't be written (Permission denied); free space there, or give another folder" in error


def test_several_hosts_that_fail_are_all_named(sshd: Sshd, tmp_path: Path) -> None:
    disguise(sshd, OTHER_VERSION)
    code, result, lines = run(command(sshd, *job_of(loudboxes(tmp_path / "5loudboxes", ONE_RANK_EACH))))
    assert (code, result["error"]) == (2, "5 of 5 hosts can't be used; see the lines above")
    assert sorted(line.partition(" has ")[0] for line in lines[1:-1]) == [
        f"host 127.0.0.{number}:" for number in range(1, 6)
    ]
    wait_until_nothing_is_left(sshd)


def test_a_mesh_check_that_hangs_ends_with_its_agent(sshd: Sshd, tmp_path: Path) -> None:
    hang = "import mesh.link_check as m, threading; m.open_mesh_for_check = lambda *_: threading.Event().wait(1000)"
    # The folder finds the process again: the arguments of the check lack it.
    disguise(sshd, f"folder = '{sshd.folder}/runs'; {hang}")
    device = ("device_config.backend=ttnn", "device_config.mesh_shape=[1,8]", "device_config.enable_ddp=true")
    arguments = job_of(loudboxes(tmp_path / "5loudboxes", ONE_HOST), *device, "batch_size=8")
    bindings = tmp_path / "5loudboxes" / "rank_bindings.yaml"
    visible = "".join(
        f"  - {{rank: {n}, mesh_id: {n}, env_overrides: {{TT_VISIBLE_DEVICES: '{n}'}}}}\n" for n in range(5)
    )
    bindings.write_text(f"rank_bindings:\n{visible}")
    process = subprocess.Popen(command(sshd, *arguments), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        eventually(lambda: processes_of(sshd, "check --mesh"), "the mesh check")
        for pid in processes_of(sshd, "launch-agent"):
            if not words_of(pid)[0].endswith("ssh"):
                os.kill(pid, signal.SIGKILL)
        wait_until_nothing_is_left(sshd)
        assert process.wait(timeout=60) == 1
    finally:
        process.kill()
        process.communicate()


# ---- while the job runs ----


LOST = "127.0.0.2"


@contextmanager
def host_lost(sshd: Sshd, how: signal.Signals) -> Iterator[None]:
    """Kill or stop all processes of a run on a host, and those of its connection. Stopped ones go on afterwards.

    All stop before one is killed. Else the end of a process could end another one before its turn.
    """
    lost = [pid for pid in processes_of(sshd, f"/{LOST}") if not words_of(pid)[0].endswith("ssh")]
    (agent,) = [pid for pid in lost if "launch-agent" in words_of(pid)]
    session = int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
    assert session not in (1, sshd.process.pid)
    for number in (signal.SIGSTOP, how):
        for pid in (session, *lost):
            os.kill(pid, number)
    try:
        yield
    finally:
        for pid in (session, *lost):
            if how == signal.SIGSTOP:
                os.kill(pid, signal.SIGCONT)


def words_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


@pytest.mark.parametrize(
    ("how", "said"),
    [(signal.SIGKILL, "ssh lost the connection"), (signal.SIGSTOP, r"no sign of life for \d+ s")],
    ids=["reboots", "freezes"],
)
def test_a_host_that_is_lost_with_the_aggregator_ends_the_run(
    sshd: Sshd, tmp_path: Path, how: signal.Signals, said: str
) -> None:
    folder = loudboxes(tmp_path / "5loudboxes", TWO_HOSTS)
    with training(command(sshd, *job_of(folder, *ENDLESS))) as process:
        assert process.stdout is not None
        with host_lost(sshd, how):
            last = process.stdout.read().splitlines()[-1]
            assert process.wait(timeout=120) == 1
        assert re.search(f"host {re.escape(LOST)}: {said}", last)
        assert len(last) <= 300
        wait_until_nothing_is_left(sshd, killed=LOST if how == signal.SIGKILL else "")


def test_a_host_that_is_lost_with_a_worker_does_not_end_the_run(sshd: Sshd, tmp_path: Path) -> None:
    folder = loudboxes(tmp_path / "5loudboxes", ONE_RANK_EACH)
    with training(command(sshd, *job_of(folder, *ENDLESS))) as process:
        assert process.stdout is not None
        lines = iter(process.stdout)
        with host_lost(sshd, signal.SIGKILL):
            said = next(line for line in lines if f"host {LOST}" in line)
            assert "ssh lost the connection" in said
            assert "the job continues with the other workers" in said
            assert any(STEP.match(line) for line in lines)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 1
        wait_until_nothing_is_left(sshd, killed=LOST)


def test_a_detached_run_that_lost_a_worker_is_attached_to(sshd: Sshd, tmp_path: Path) -> None:
    folder = loudboxes(tmp_path / "5loudboxes", ONE_RANK_EACH)
    code, result, lines = run(command(sshd, *job_of(folder, *ENDLESS), "--detach"))
    assert code == 0, lines
    with host_lost(sshd, signal.SIGKILL):
        pass
    with training(command(sshd, "--attach", result["run"])) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 1
    code, result, lines = run(command(sshd, "--stop", result["run"]))
    assert code == 0, lines
    wait_until_nothing_is_left(sshd, killed=LOST)
