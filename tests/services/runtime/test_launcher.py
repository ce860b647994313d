"""`DaemonProcess` with small programs in place of daemons."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.errors import Failed
from services.runtime.launcher import DaemonProcess, environment_without_options, kill_all, read_last_line

SERVE = """
import json, pathlib, sys
flags = dict(zip(sys.argv[2::2], sys.argv[3::2]))
port = int(flags["--listen"].rpartition(":")[2]) or 4711
ready = pathlib.Path(flags["--ready-file"])
(ready.parent / "part").write_text(json.dumps({"port": port, "tensor_port": 1, "metrics_port": 2}))
(ready.parent / "part").rename(ready)
sys.stdin.read()
"""
"""A daemon's outside: it writes the ready file, then ends with its standard input."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess("worker", "worker-1", tmp_path, program=("-c", SERVE)).start()
    try:
        yield daemon
    finally:
        daemon.close()


def test_ports_are_known_once_it_is_ready_and_kept_over_restarts(daemon: DaemonProcess) -> None:
    asyncio.run(daemon.wait_ready())
    assert daemon.address == "127.0.0.1:4711"
    assert (daemon.tensor_port, daemon.metrics_port) == (1, 2)
    daemon.kill()
    with pytest.raises(Failed, match=r"worker-1 .*SIGKILL.*worker-1\.log"):
        daemon.is_ready()
    daemon.start()
    asyncio.run(daemon.wait_ready())
    assert daemon.port == 4711


def test_a_frozen_daemon_is_killed_when_it_does_not_stop(daemon: DaemonProcess) -> None:
    daemon.freeze()
    daemon.kill()
    assert daemon.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[" * 100_000,
        "{}",
        '{"port": 65536, "tensor_port": 1, "metrics_port": 2}',
        '{"port": Infinity, "tensor_port": 1, "metrics_port": 2}',
        '{"port": "70", "tensor_port": 1, "metrics_port": 2}',
        "x" * (1 << 20),
    ],
)
def test_a_damaged_ready_file_is_named(daemon: DaemonProcess, tmp_path: Path, content: str) -> None:
    asyncio.run(daemon.wait_ready())
    daemon._ready_file.write_text(content)
    with pytest.raises(Failed, match="damaged, expected the ports of"):
        daemon.is_ready()


def test_stop_ends_a_daemon_and_removes_its_ready_file(daemon: DaemonProcess, tmp_path: Path) -> None:
    async def live() -> int:
        await daemon.wait_ready()
        ended = asyncio.ensure_future(daemon.wait_ended())
        await daemon.stop()
        return await ended

    assert asyncio.run(live()) == -signal.SIGTERM
    assert not list(tmp_path.glob("*.ready.json"))


SAVES = """
import json, pathlib, signal, sys
ready = pathlib.Path(dict(zip(sys.argv[2::2], sys.argv[3::2]))["--ready-file"])

def write(**more):
    part = ready.with_name("part")
    part.write_text(json.dumps({"port": 1, "tensor_port": 1, "metrics_port": 2, **more}))
    part.rename(ready)

def save(number, frame):
    write(saving="the checkpoint of step 7")
    open(ready.with_name("people know"), "rb", 0).read(1)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
write()
sys.stdin.read()
"""
"""A daemon that saves until people were told."""


def test_a_daemon_that_saves_is_not_cut_off_and_people_are_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "people know")
    people_know = os.open(tmp_path / "people know", os.O_RDWR)
    daemon = DaemonProcess("optimizer", "optimizer", tmp_path, program=("-c", SAVES)).start()
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        os.write(people_know, b".")

    async def live() -> None:
        await daemon.wait_ready()
        await daemon.stop(1.0, tell)

    try:
        asyncio.run(live())
        assert daemon.process.returncode == 0
        (line,) = told
        assert "15 min" in line and "the checkpoint of step 7" in line and "optimizer" in line
    finally:
        daemon.close()
        os.close(people_know)


def test_an_end_before_it_is_ready_names_its_last_error(tmp_path: Path) -> None:
    daemon = DaemonProcess(
        "worker", "worker-1", tmp_path, program=("-c", "raise SystemExit('Error: no mesh')")
    )
    daemon.start()
    try:
        with pytest.raises(Failed, match=r"worker-1 .*exit code 1.*Error: no mesh"):
            asyncio.run(daemon.wait_ready())
    finally:
        kill_all([daemon])


@pytest.mark.parametrize(
    ("program", "end"),
    [
        (
            "print('12:00 ERROR   tiermesh: a link broke'); import os; os.kill(os.getpid(), 9)",
            "killed by SIGKILL",
        ),
        ("print('12:00 INFO    tiermesh: step 7'); raise SystemExit(3)", "exit code 3"),
    ],
)
def test_a_line_that_may_have_nothing_to_do_with_an_end_does_not_pose_as_its_cause(
    tmp_path: Path, program: str, end: str
) -> None:
    daemon = DaemonProcess("worker", "worker-1", tmp_path, program=("-uc", program))
    daemon.start()
    try:
        asyncio.run(daemon.wait_ended())
        assert f"ended, {end}; its last line, perhaps unrelated: 12:00 " in daemon.describe_end()
    finally:
        kill_all([daemon])


def test_options_in_the_environment_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERMESH_NAME", "of the command")
    of_host = {"TIERMESH_DATA": "/data", "TIERMESH_CACHE": "/cache"}
    for name, value in of_host.items():
        monkeypatch.setenv(name, value)
    passed = {
        name: value for name, value in environment_without_options().items() if name.startswith("TIERMESH_")
    }
    assert passed == of_host


def test_the_last_error_of_a_log_is_found(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    assert read_last_line(log) == ("", False)
    log.write_text(
        "12:00 INFO    a: started\n12:01 ERROR   tiermesh: mesh_shape: bad\n12:02 INFO    a: stopping\n\n"
    )
    assert read_last_line(log) == ("12:01 ERROR   tiermesh: mesh_shape: bad", True)
    log.write_text("12:00 INFO    a: started\n")
    assert read_last_line(log) == ("12:00 INFO    a: started", False)
