"""Tests of failpoints: their actions, their syntax, and that each is in the code."""

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
def disarm_afterwards() -> Iterator[None]:
    yield
    failpoints.arm({})


def test_failpoints_are_off_by_default() -> None:
    failpoints.arm({})
    assert not failpoints.is_armed()
    failpoints.hit_failpoint("worker.send")


def test_error_is_raised_at_the_given_hit(tmp_path: Path) -> None:
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


def test_kill_is_logged_before_it_happens(tmp_path: Path) -> None:
    code = "import os; from services.instrumentation import failpoints as f; f.arm(os.environ)"
    code += "; f.hit_failpoint('worker.send')"
    log = tmp_path / "log"
    settings = {failpoints.VARIABLE: "worker.send=kill@1", failpoints.LOG_VARIABLE: str(log)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=settings, check=False)
    assert done.returncode == -signal.SIGKILL
    assert re.fullmatch(r"worker\.send \d+ 1 kill\n", log.read_text())


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("worker.sent=kill@1", r"TIERMESH_FAILPOINTS.*worker\.sent.*worker\.send"),
        ("worker.send", r"worker\.send.*expected NAME=kill@HIT"),
        ("worker.send=kill@0", r"worker\.send=kill@0.*from 1"),
        ("worker.send=stop@1", r"worker\.send=stop@1"),
    ],
)
def test_malformed_settings_are_refused(text: str, facts: str) -> None:
    with pytest.raises(Refused, match=facts):
        failpoints.arm({failpoints.VARIABLE: text})
    assert not failpoints.is_armed()


def test_a_wrong_bit() -> None:
    values = bytearray(4)
    failpoints.arm({failpoints.VARIABLE: "link-check.summed=flip@2,worker.send=flip@1"})
    failpoints.hit_failpoint("link-check.summed", memoryview(values))
    assert values == bytes(4)
    failpoints.hit_failpoint("link-check.summed", memoryview(values))
    assert values == b"\1\0\0\0"
    with pytest.raises(OSError, match=r"failpoint worker\.send"):
        failpoints.hit_failpoint("worker.send")


def test_every_failpoint_is_in_the_code_once() -> None:
    found: list[str] = []
    for folder in ("services", "plane", "compute", "worker", "aggregator", "optimizer"):
        for path in (ROOT / folder).rglob("*.py"):
            found += re.findall(r'point\("([\w.-]+)"[,)]', path.read_text())
    assert sorted(found) == sorted(failpoints.FAILPOINTS)
