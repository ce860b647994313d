"""link_check: bandwidth that `tiermesh check --cluster` measures, over what plain sockets measure on the same link."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

from benchmarks.harness.hosts import GIGABIT, LOOPBACK, Host, Hosts
from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.link_meter import raw_share
from benchmarks.harness.report import report
from services.errors import Failed
from services.runtime.launcher import DaemonProcess, environment_without_options, kill_all

RATES = (GIGABIT, GIGABIT / 10)
"""Bits per second of the shaped links."""
LARGEST_DIFFERENCE = 0.10
_WORKERS = ("worker-1", "worker-2")
_READY_SECONDS = 60.0
_CHECK_SECONDS = 300.0


def run() -> bool:
    """Measure and report the figure of each rate, and print both measurements on loopback."""
    reached = True
    for rate in RATES:
        reached &= _on_shaped_links(rate)
    raw = raw_share([(LOOPBACK, LOOPBACK)], 1.0)
    print(f"link_check on loopback: plain sockets {raw / 1e9:.2f} Gbit/s")
    hosts = dict.fromkeys(("aggregator", *_WORKERS), LOOPBACK)
    for options, path in ((("--no-shared-memory",), "wire"), ((), "shared memory")):
        for link in _check(hosts, *options):
            print(f"    {link['from']}: {path}, {_speeds(link)}", flush=True)
    return reached


def _on_shaped_links(rate: float) -> bool:
    """Compare each worker's link, one after another, with plain sockets between the same hosts."""
    with Hosts(["aggregator", *_WORKERS], rate) as network:
        hosts = network.by_name
        server = hosts["aggregator"]
        raw = {
            name: (raw_share([(hosts[name], server)], rate), raw_share([(server, hosts[name])], rate))
            for name in _WORKERS
        }
        links = _check(hosts)
    differences, details = [], []
    for link in links:
        up, down = (share * rate / 8 for share in raw[link["from"]])
        differences += [
            abs(link["up_bytes_per_second"] / up - 1),
            abs(link["down_bytes_per_second"] / down - 1),
        ]
        sockets = f"plain sockets {8 * up / 1e6:.1f} up, {8 * down / 1e6:.1f} down"
        details.append(f"{link['from']}: {_speeds(link)}; {sockets}")
    name = f"link_check_difference_{rate / 1e6:.0f}_mbit"
    return report(name, max(differences), LARGEST_DIFFERENCE, *details)


def _speeds(link: dict[str, Any]) -> str:
    up, down = (8 * link[f"{way}_bytes_per_second"] / 1e6 for way in ("up", "down"))
    return f"{up:.1f} Mbit/s up, {down:.1f} down, {1e3 * link['latency_seconds']:.2f} ms"


def _check(hosts: dict[str, Host], *options: str) -> list[dict[str, Any]]:
    """Run the check on a new cluster with a daemon on each host; return its links.

    Raises:
        Failed: a daemon does not get ready, or the check does not pass.
    """
    folder = BUILD / "link-check"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {**environment_without_options(), "PYTHONPATH": str(ROOT)}
    daemons: list[DaemonProcess] = []
    with ExitStack() as stack:
        stack.callback(lambda: kill_all(daemons))

        def start(role: str, name: str, *arguments: str) -> DaemonProcess:
            host = hosts[name]
            daemon = DaemonProcess(
                role,
                name,
                folder,
                [*host.flags, *options, *arguments, "--state-dir", str(folder / name)],
                host=host.address,
                spawn=host.spawner(environment),
            )
            daemons.append(daemon.start())
            deadline = time.monotonic() + _READY_SECONDS
            while not daemon.is_ready():
                if time.monotonic() > deadline:
                    raise Failed(f"{name} is not ready within {_READY_SECONDS:g} s; see {daemon.log}")
                time.sleep(0.01)
            return daemon

        aggregator = start("aggregator", "aggregator")
        for worker in _WORKERS:
            start("worker", worker, "--aggregator", aggregator.address)
        command = [sys.executable, "-m", "cli.main"]
        target = ["--aggregator", aggregator.address, "--json"]
        _wait_for_workers(hosts["aggregator"].command([*command, "status", *target]), environment)
        done = subprocess.run(
            hosts["aggregator"].command([*command, "check", "--cluster", "--backend", "emulator", *target]),
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=_CHECK_SECONDS,
        )
    if done.returncode:
        raise Failed(f"tiermesh check: exit code {done.returncode}: {done.stderr.strip().splitlines()[-1]}")
    links: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["links"]
    return links


def _wait_for_workers(status: list[str], environment: dict[str, str]) -> None:
    """Wait until all workers have connected; raises Failed after the limit."""
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        done = subprocess.run(
            status,
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=_READY_SECONDS,
        )
        if done.returncode == 0 and len(json.loads(done.stdout.splitlines()[-1])["workers"]) == len(_WORKERS):
            return
    raise Failed(f"{len(_WORKERS)} workers have not connected within {_READY_SECONDS:g} s")
