"""Tests of an aggregator's options: contradictions are refused in one line before anything is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.daemon import tiermesh


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--shard", "--shards", "a:1"), "--shard and --shards"),
        (("--shard", "--optimizer", "a:1"), "--shard and --optimizer"),
        (("--shard", "--standby"), "--shard and --standby"),
        (
            ("--shards", "a:1", "--optimizer", "b:1"),
            "--shards and --optimizer",
        ),
        (("--shards", "a:1,a:1"), "--shards 'a:1,a:1': a:1 is given twice"),
        (("--shards", "a:1,b"), "--shards 'b'"),
    ],
)
def test_contradicting_role_options_are_refused(
    tmp_path: Path, arguments: tuple[Any, ...], line: str
) -> None:
    done = tiermesh("aggregator", "--state-dir", tmp_path, "--listen", "127.0.0.1:0", *arguments)
    assert done.returncode == 2
    assert line in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (("--timeout", "stall"), ("--timeout stall:", "NAME=SECONDS")),
        (("--timeout", "stall=long"), ("--timeout stall=long:", "NAME=SECONDS")),
        (("--timeout", "stal=900"), ("timeout stal:", "tick, beat")),
        (("--timeout", "kill=50"), ("--timeout kill:", "stall")),
        (("--timeout", "lock=1", "--timeout", "silent=90"), ("timeout lock: 1 s", "retry (3.75 s)")),
        (("--timeout", "silent=90"), ("timeout lapse: 15 s", "silent (90 s)")),
        (("--heartbeat-seconds", "0"), ("--heartbeat-seconds", "from 0.1 to 600")),
    ],
)
def test_impossible_timeouts_are_refused(
    tmp_path: Path, arguments: tuple[str, ...], facts: tuple[str, ...]
) -> None:
    done = tiermesh("aggregator", "--state-dir", tmp_path, "--listen", "127.0.0.1:0", *arguments)
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert all(fact in line for fact in facts), line


@pytest.mark.parametrize("option", ["--listen", "--metrics-listen"])
def test_an_address_without_tls_is_refused_before_anything_is_made(tmp_path: Path, option: str) -> None:
    state = tmp_path / "state"
    done = tiermesh("aggregator", "--state-dir", state, option, "0.0.0.0:0")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"{option} 0.0.0.0:0: reachable from other hosts" in line
    assert not state.exists()
