"""Emulated hosts: their ownership and their removal."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.harness import hosts
from benchmarks.harness.hosts import LOOPBACK, Host, Hosts, inner_process, started_ticks
from benchmarks.harness.report import Skipped

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


def test_tcp_is_the_same_on_any_machine(network: Hosts) -> None:
    shown = network.by_name["a"].command(["cat", "/proc/sys/net/ipv4/tcp_congestion_control"])
    assert subprocess.run(shown, capture_output=True, text=True, check=True).stdout == "reno\n"


def test_a_command_runs_on_its_host() -> None:
    assert LOOPBACK.command(PROGRAM) == list(PROGRAM)
    assert LOOPBACK.flags == ()
    host = Host("10.0.0.1", first_process=7)
    assert host.command(PROGRAM)[0] == "nsenter" and "--target=7" in host.command(PROGRAM)
    assert host.command(PROGRAM)[-len(PROGRAM) :] == list(PROGRAM)
    assert host.flags == ("--insecure",)


def test_an_ended_process_has_no_start_time() -> None:
    assert started_ticks(os.getpid()) > 0
    child = subprocess.Popen(["true"])
    child.wait()
    assert started_ticks(child.pid) == 0


def test_hosts_are_skipped_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Skipped, match="need root"), Hosts(["a"], hosts.GIGABIT):
        pass


def test_hosts_are_skipped_without_their_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else f"/sbin/{tool}")
    with pytest.raises(Skipped, match="no tc on the PATH"), Hosts(["a"], hosts.GIGABIT):
        pass


def output_of(host: Host, *command: str) -> str:
    return subprocess.run(host.command(command), capture_output=True, text=True, check=True).stdout


@contextmanager
def cat_on(host: Host) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process on a host that runs until its input ends."""
    command = host.command(["cat"])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"up")
        assert process.stdout.read(2) == b"up"
        yield process


def test_hosts_have_links_and_separate_processes(network: Hosts) -> None:
    first, second = network.by_name.values()
    assert "dev eth0" in output_of(first, "ip", "route", "get", second.address)
    with cat_on(second) as process:
        assert "cat" not in output_of(first, "ps", "-A", "-o", "comm").split()
        assert "cat" in output_of(second, "ps", "-A", "-o", "comm").split()
        inner = inner_process(process.pid)
        assert inner != process.pid
        os.kill(inner, signal.SIGKILL)
        assert process.wait() != 0


def test_links_can_be_reshaped(network: Hosts) -> None:
    first, _ = network.by_name.values()
    assert network.dropped_packets() == 0
    network.shape(1e8)
    assert "rate 100Mbit" in output_of(first, "tc", "qdisc", "show", "dev", "eth0")


def test_closed_hosts_leave_nothing_behind(network: Hosts) -> None:
    first, _ = network.by_name.values()
    assert f"-{os.getpid()}-" in namespaces()
    with cat_on(first) as process:
        network.__exit__(None, None, None)
        assert process.wait() != 0
    assert f"-{os.getpid()}-" not in namespaces()
    assert not Path(f"/proc/{first.first_process}").exists()


def test_leftovers_of_a_killed_run_are_removed(network: Hosts) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    left = f"tiermesh-bench-{child.pid}-1-worker"
    subprocess.run(["ip", "netns", "add", left], check=True)
    hosts.remove_stale()
    assert left not in namespaces()
    assert f"-{os.getpid()}-" in namespaces()  # namespace of a run that is still alive
