"""Emulate hosts on one machine: network and process namespaces, each with a shaped link to a switch.

Hosts don't see each other's processes. So tensors use shared memory within a host, and the wire between hosts.

A link is a veth pair between the host's namespace and the bridge in the switch's namespace. The queue at each end (tc's
tbf) limits the rate. So both directions are shaped, and several senders to one host compete at its port, as at a real
switch. Offloads stay on: tbf counts an unsegmented packet with the headers of all its segments. So its rate is that of
the wire, including Ethernet's 14-byte header, but not preamble, checksum and gap.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, TypeAlias

from benchmarks.harness.job_settings import ROOT
from benchmarks.harness.report import Skipped
from services.errors import Failed
from services.runtime.launcher import Spawn, spawn_subprocess

GIGABIT = 1e9
_PREFIX = "tiermesh-bench"
_NETWORK = "10.77.0"
_BURST_SECONDS = 0.004
"""Time of the link that an idle queue may save up for a burst: 500 KB at 1 Gbit/s."""
_LEAST_BURST_BYTES = 128 * 1024
"""Smallest burst, so that the longest unsegmented packet passes."""
_QUEUE_SECONDS = 0.05
"""Time of the link that a port's queue buffers before it drops packets, like a switch: 6 MB at 1 Gbit/s."""
_COMMAND_SECONDS = 20.0
_TCP = "/proc/sys/net/ipv4/tcp_congestion_control"
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
_FIRST_PROGRAM = "import sys; print(flush=True); sys.stdin.read()"
_ENTERING = ("nsenter", "unshare")
_NOBODY = "02:00:00:00:00:01"
"""A MAC address that no port of the switch has."""

Direction: TypeAlias = Literal["both", "from", "to"]
"""Blocked direction of a host's link: both, packets from the host, or packets to it."""


@dataclass(frozen=True)
class Host:
    """Place where a process runs.

    Attributes:
        address: address at which others reach it.
        first_process: id of the process that owns its namespaces, which end with it. 0 means this machine itself.
    """

    address: str = "127.0.0.1"
    first_process: int = 0

    @property
    def flags(self) -> tuple[str, ...]:
        """Additional flags for a daemon on this host."""
        return ("--insecure",) if self.first_process else ()

    def command(self, command: Sequence[str]) -> list[str]:
        """Wrap a command so that it runs on this host: on an emulated host, as the only child of `nsenter`."""
        if not self.first_process:
            return list(command)
        return [
            "nsenter",
            f"--target={self.first_process}",
            "--net",
            "--pid",
            "--mount",
            "--wd",
            "--",
            *command,
        ]

    def spawner(self, environment: Mapping[str, str]) -> Spawn:
        """Return the function that starts a daemon's process on this host, for `DaemonProcess`."""

        def spawn(command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
            kind: type[subprocess.Popen[bytes]] = NamespaceProcess if self.first_process else subprocess.Popen
            return spawn_subprocess(
                self.command(command), log, environment=environment, folder=ROOT, process_class=kind
            )

        return spawn


class NamespaceProcess(subprocess.Popen[bytes]):
    """A process in a host's namespaces. Signals bypass the `nsenter` that started it."""

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process inside, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError, FileNotFoundError):
                os.kill(inner_process(self.pid), sig)


LOOPBACK = Host()


class Hosts:
    """A context manager that creates emulated hosts and removes them, also those of an earlier run that was killed.

    Args:
        names: names of the hosts.
        bits_per_second: rate of each link, in both directions.

    Raises:
        Skipped: this machine or this user can't have network namespaces with shaped links.

    Attributes:
        by_name: hosts by name.
        bits_per_second: current rate of each link.
    """

    def __init__(self, names: Sequence[str], bits_per_second: float) -> None:
        self.bits_per_second = bits_per_second
        stamp = f"{_PREFIX}-{os.getpid()}-{started_ticks(os.getpid())}"
        self._switch = f"{stamp}-switch"
        self._spaces = {name: f"{stamp}-{name}" for name in names}
        self._first: list[subprocess.Popen[str]] = []
        self.by_name: dict[str, Host] = {}

    def __enter__(self) -> Hosts:
        if os.geteuid() != 0:
            raise Skipped("network namespaces need root")
        for tool, package in _TOOLS.items():
            if shutil.which(tool) is None:
                raise Skipped(f"no {tool} on the PATH: install {package}")
        remove_stale()
        try:
            self._make()
        except Failed as error:
            self._remove()
            raise Skipped(f"no network namespaces with shaped links here: {error}") from None
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._remove()

    def shape(self, bits_per_second: float) -> None:
        """Change the rate of every link.

        Raises:
            Failed: tc failed.
        """
        self.bits_per_second = bits_per_second
        for number, space in enumerate(self._spaces.values(), 1):
            _tc("replace", space, "eth0", bits_per_second)
            _tc("replace", self._switch, f"port{number}", bits_per_second)

    def cut(self, name: str, direction: Direction) -> None:
        """Block a host's link. Packets are lost, and no end is notified.

        Raises:
            Failed: ip failed.
        """
        if direction == "both":
            _run("ip", "-n", self._switch, "link", "set", self._port(name), "down")
        for sender, receiver in self._ways(name, direction):
            _run(*_neighbour("replace", sender, receiver), "lladdr", _NOBODY, "nud", "permanent")

    def restore_link(self, name: str, direction: Direction) -> None:
        """Unblock a host's link that was cut in this direction.

        Raises:
            Failed: ip failed.
        """
        if direction == "both":
            _run("ip", "-n", self._switch, "link", "set", self._port(name), "up")
        for sender, receiver in self._ways(name, direction):
            _run(*_neighbour("delete", sender, receiver))

    def _ways(self, name: str, direction: Direction) -> list[tuple[str, str]]:
        """Return the sending namespaces and the addresses they lose, for a link that is cut in one direction."""
        others = [other for other in self._spaces if other != name]
        if direction == "from":
            return [(self._spaces[name], self.by_name[other].address) for other in others]
        if direction == "to":
            return [(self._spaces[other], self.by_name[name].address) for other in others]
        return []

    def _port(self, name: str) -> str:
        return f"port{list(self._spaces).index(name) + 1}"

    def dropped_packets(self) -> int:
        """Return how many packets the ports' queues have dropped so far."""
        count = 0
        for namespace in (self._switch, *self._spaces.values()):
            shown = _run("ip", "netns", "exec", namespace, "tc", "-s", "qdisc", "show")
            count += sum(int(found) for found in re.findall(r"dropped (\d+)", shown))
        return count

    def _make(self) -> None:
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", "bridge0", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "bridge0", "up")
        for number, (name, space) in enumerate(self._spaces.items(), 1):
            port, address = self._port(name), f"{_NETWORK}.{number}"
            _run("ip", "netns", "add", space)
            _run("ip", "netns", "exec", space, "sh", "-c", f'echo "$0" > {_TCP}', congestion_control())
            _run(
                "ip", "-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", self._switch
            )  # fmt: skip
            _run("ip", "-n", space, "address", "add", f"{address}/24", "dev", "eth0")
            _run("ip", "-n", self._switch, "link", "set", port, "master", "bridge0")
            for namespace, device in ((space, "lo"), (space, "eth0"), (self._switch, port)):
                _run("ip", "-n", namespace, "link", "set", device, "up")
            _tc("add", space, "eth0", self.bits_per_second)
            _tc("add", self._switch, port, self.bits_per_second)
            self.by_name[name] = Host(address, self._start_first(space))

    def _start_first(self, space: str) -> int:
        """Start a process namespace. Return the id of its first process, which ends when this process ends."""
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        process = subprocess.Popen(
            ["ip", "netns", "exec", space, *command, sys.executable, "-c", _FIRST_PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,  # Ctrl-C reaches only the process that cleans up
        )
        self._first.append(process)
        assert process.stdout is not None and process.stderr is not None
        if not process.stdout.readline():
            words = process.stderr.read().strip().splitlines()
            raise Failed(f"{' '.join(command)}: {words[-1] if words else 'no process namespace'}")
        return inner_process(process.pid)

    def _remove(self) -> None:
        for process in self._first:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(
                    timeout=_COMMAND_SECONDS
                )  # The end of its input ends it and all others in the namespace.
            process.kill()
        for namespace in (*self._spaces.values(), self._switch):
            with suppress(Failed):  # it may not exist
                _run("ip", "netns", "delete", namespace)


def congestion_control() -> str:
    """Return TCP's congestion control where figures compare: TIERMESH_BENCH_TCP, or the one that every network has."""
    return os.environ.get("TIERMESH_BENCH_TCP", "reno")


def inner_process(process: int) -> int:
    """Return the id of the process that `Host.command` runs: its own, or that of its child behind `nsenter`."""
    folder = Path(f"/proc/{process}")
    if (folder / "comm").read_text().strip() not in _ENTERING:
        return process
    children = (folder / "task" / str(process) / "children").read_text().split()
    return int(children[0]) if children else process


def remove_stale() -> None:
    """Remove namespaces of killed runs, which are those whose process has ended."""
    for name in _run("ip", "netns", "list").split():
        found = re.match(rf"{_PREFIX}-(\d+)-(\d+)-", name)
        if found and started_ticks(int(found[1])) != int(found[2]):
            with suppress(Failed):  # Another run may have removed it.
                _run("ip", "netns", "delete", name)


def started_ticks(process: int) -> int:
    """Return a process's start in clock ticks since boot, which is unique with its id. 0 means no such process."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])


def _neighbour(verb: str, space: str, address: str) -> list[str]:
    return ["ip", "-n", space, "neighbour", verb, address, "dev", "eth0"]


def _tc(verb: str, namespace: str, device: str, bits_per_second: float) -> None:
    burst = max(_LEAST_BURST_BYTES, int(_BURST_SECONDS * bits_per_second / 8))
    _run(
        "ip", "netns", "exec", namespace, "tc", "qdisc", verb, "dev", device, "root", "tbf",
        "rate", f"{bits_per_second:.0f}bit", "burst", f"{burst}b", "latency", f"{1e3 * _QUEUE_SECONDS:g}ms",
    )  # fmt: skip


def _run(*command: str) -> str:
    """Run a command and return its output.

    Raises:
        Failed: the command failed. The text has its last line of output.
    """
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command)}: not done within {_COMMAND_SECONDS:g} s") from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise Failed(f"{' '.join(command)}: {words[-1] if words else f'exit code {done.returncode}'}")
    return done.stdout
