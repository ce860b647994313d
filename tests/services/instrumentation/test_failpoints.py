"""Failpoints: what the environment may ask for, done at the hit that was named, and all in the code."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.errors import Refused
from services.instrumentation import failpoints

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def off_again() -> Iterator[None]:
    yield
    failpoints.arm({})


def test_off_unless_asked_for() -> None:
    failpoints.arm({})
    assert not failpoints.is_armed()
    failpoints.hit_failpoint("worker.send")


def test_an_error_at_the_hit_that_was_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    failpoints.arm({failpoints.VARIABLE: "worker.send=error@2", failpoints.LOG_VARIABLE: str(log)})
    failpoints.hit_failpoint("worker.send")
    with pytest.raises(OSError, match=r"failpoint worker\.send"):
        failpoints.hit_failpoint("worker.send")
    failpoints.hit_failpoint("worker.send")
    failpoints.hit_failpoint("checkpoint.before")
    hits = [(line.split()[0], *line.split()[2:]) for line in log.read_text().splitlines()]
    assert hits == [
        ("worker.send", "1"),
        ("worker.send", "2", "error"),
        ("worker.send", "3"),
        ("checkpoint.before", "1"),
    ]


def test_a_kill_is_in_the_log(tmp_path: Path) -> None:
    code = "import os; from services.instrumentation import failpoints as f; f.arm(os.environ)"
    code += "; f.hit_failpoint('worker.send')"
    log = tmp_path / "log"
    settings = {failpoints.VARIABLE: "worker.send=kill@1", failpoints.LOG_VARIABLE: str(log)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=settings, check=False)
    assert done.returncode == -signal.SIGKILL
    assert re.fullmatch(r"worker\.send \d+ 1 kill\n", log.read_text())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("worker.sent=kill@1", "TIERMESH_FAILPOINTS: no failpoint 'worker.sent'; the nearest is worker.send"),
        ("worker.send", "expected NAME=kill@HIT or NAME=error@HIT"),
        ("worker.send=kill@0", "HIT counting from 1"),
        ("worker.send=stop@1", "'worker.send=stop@1'"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, said: str) -> None:
    with pytest.raises(Refused, match=re.escape(said)):
        failpoints.arm({failpoints.VARIABLE: text})
    assert not failpoints.is_armed()


def test_every_failpoint_is_in_the_code_once() -> None:
    found: list[str] = []
    for folder in ("services", "worker", "aggregator", "optimizer"):
        for path in (ROOT / folder).rglob("*.py"):
            found += re.findall(r'point\("([\w.-]+)"\)', path.read_text())
    assert sorted(found) == sorted(failpoints.FAILPOINTS)
