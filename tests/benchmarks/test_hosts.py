"""Hosts in namespaces: who they belong to, and that nothing of them stays behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from benchmarks import hosts
from benchmarks.hosts import LOOPBACK, Host, Hosts, started_ticks
from benchmarks.report import Skipped

PROGRAM = ("python", "-c", "pass")


@pytest.fixture
def network() -> Iterator[Hosts]:
    try:
        with Hosts(["a", "b"], hosts.GIGABIT) as made:
            yield made
    except Skipped as reason:
        pytest.skip(str(reason))


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


def test_a_command_runs_where_its_host_is() -> None:
    assert LOOPBACK.command(PROGRAM) == list(PROGRAM)
    assert LOOPBACK.flags == ()
    host = Host("10.0.0.1", "elsewhere")
    assert host.command(PROGRAM) == ["ip", "netns", "exec", "elsewhere", *PROGRAM]
    assert host.flags == ("--insecure",)


def test_a_process_is_known_by_its_start() -> None:
    assert started_ticks(os.getpid()) > 0
    child = subprocess.Popen(["true"])
    child.wait()
    assert started_ticks(child.pid) == 0


def test_without_root_it_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Skipped, match="need root"), Hosts(["a"], hosts.GIGABIT):
        pass


def test_without_its_tools_it_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else f"/sbin/{tool}")
    with pytest.raises(Skipped, match="no tc on the PATH"), Hosts(["a"], hosts.GIGABIT):
        pass


def test_hosts_see_each_other_alone_and_leave_nothing(network: Hosts) -> None:
    first, second = network.by_name.values()
    seen = subprocess.run(
        first.command(["ip", "route", "get", second.address]), capture_output=True, text=True, check=True
    )
    assert "dev eth0" in seen.stdout
    assert first.namespace in namespaces() and second.namespace in namespaces()
    assert network.dropped_packets() == 0
    network.shape(1e8)
    shown = subprocess.run(
        first.command(["tc", "qdisc", "show", "dev", "eth0"]), capture_output=True, text=True, check=True
    )
    assert "rate 100Mbit" in shown.stdout
    network.__exit__(None, None, None)
    assert first.namespace not in namespaces() and second.namespace not in namespaces()


def test_what_a_killed_run_has_left_is_removed(network: Hosts) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    left = f"tiermesh-bench-{child.pid}-1-worker"
    subprocess.run(["ip", "netns", "add", left], check=True)
    hosts.remove_stale()
    assert left not in namespaces()
    assert all(host.namespace in namespaces() for host in network.by_name.values())
