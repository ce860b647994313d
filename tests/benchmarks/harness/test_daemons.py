"""Waits of the benchmarks end when a daemon dies, unless the benchmark killed it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.harness.daemons import Daemons, Job
from services.errors import Failed
from services.runtime.launcher import DaemonProcess, kill_all

LONG_SECONDS = 60.0
UNTIL_INPUT_ENDS = "import sys; sys.stdin.read()"


class Processes(Daemons):
    """Daemons replaced by processes that run until their input ends."""

    def __init__(self, folder: Path, *names: str) -> None:
        super().__init__("none", Job(Path("none"), Path("none")), workers=0)
        for name in names:
            self.processes[name] = DaemonProcess(
                "worker", name, folder, program=("-c", UNTIL_INPUT_ENDS)
            ).start()

    def _open_gate(self, path: Path, stack: ExitStack) -> None:
        pass

    def end(self, name: str) -> None:
        """Let one process end by itself."""
        pipe = self.processes[name].process.stdin
        assert pipe is not None
        pipe.close()


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path, "a", "b")
    try:
        yield processes
    finally:
        kill_all(processes.processes.values())


def test_a_wait_returns_what_it_finds(daemons: Processes) -> None:
    looks = iter([None, None, "found"])
    assert daemons.until(lambda: next(looks), "it", LONG_SECONDS) == "found"


def test_a_wait_has_a_limit(daemons: Processes) -> None:
    with pytest.raises(Failed, match=r"0\.05 s.* it\b.*none"):
        daemons.until(lambda: None, "it", 0.05)


def test_each_wait_fails_when_a_daemon_ends(daemons: Processes, tmp_path: Path) -> None:
    daemons.end("b")
    with pytest.raises(Failed, match=r"^b ended.* it\b.*b\.log"):
        daemons.until(lambda: None, "it", LONG_SECONDS)
    with pytest.raises(Failed, match=r"^b ended.*gone of a"):
        daemons.wait_written("a", tmp_path / "gone", LONG_SECONDS)
    with pytest.raises(Failed, match=r"^b ended.*noon"):
        daemons.until_moment(time.time() + LONG_SECONDS, "noon")


def test_the_last_result_of_an_ended_daemon_is_found(daemons: Processes) -> None:
    def look() -> str | None:
        daemons.end("a")
        return "found" if daemons.processes["a"].process.poll() is not None else None

    assert daemons.until(look, "it", LONG_SECONDS) == "found"


def test_a_daemon_that_the_benchmark_killed_is_ignored(daemons: Processes) -> None:
    daemons.kill("a")
    began = time.time()
    daemons.until_moment(began + 0.05, "a moment")
    assert time.time() >= began + 0.05
