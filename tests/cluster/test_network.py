"""Roles on emulated hosts whose links break during a job and come back: the same bits.

A broken link gives no notice: packets are lost, and no connection is refused or reset.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.harness.hosts import Direction, Hosts
from benchmarks.harness.report import Skipped
from tests.support.cluster.bits import CHECKPOINT_EVERY, Bits, gpt_config, write_config
from tests.support.cluster.daemon import LIMIT_SECONDS, Daemon, environment, eventually
from tests.support.cluster.fork_server import ROOT

HEARTBEAT_SECONDS = 0.5
BITS_PER_SECOND = 1e8
"""Speed of each link: a step takes about a second, so that a job of 12 is cut off long before its end."""
DIRECTIONS = (
    "both",
    pytest.param("from", marks=pytest.mark.slow),
    pytest.param("to", marks=pytest.mark.slow),
)


class Network:
    """A 3-tier cluster on emulated hosts, with one job whose command runs on the aggregator's host."""

    def __init__(self, hosts: Hosts, folder: Path, config: Path, *, workers: int) -> None:
        self.hosts = hosts
        self.daemons: list[Daemon] = []
        self._folder = folder
        self._output = folder / "output"
        self.optimizer = self._start("optimizer", "optimizer", "--state-dir", folder / "optimizer-state")
        self.aggregator = self._start(
            "aggregator", "aggregator", "--state-dir", folder / "aggregator-state",
            "--heartbeat-seconds", HEARTBEAT_SECONDS, "--optimizer", self.optimizer.address,
        )  # fmt: skip
        self.workers = [self.start_worker(f"worker-{number + 1}") for number in range(workers)]
        command = [sys.executable, "-m", "cli.main", "submit", str(config), "--follow", "--json"]
        command += ["--aggregator", self.aggregator.address]
        with self._output.open("wb") as output:
            self._submit = subprocess.Popen(
                hosts.by_name["aggregator"].command(command),
                cwd=ROOT,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in self.daemons:
            daemon.close()
        with suppress(ProcessLookupError):
            self._submit.send_signal(signal.SIGTERM)
        self._submit.wait(LIMIT_SECONDS)

    def _start(self, role: str, name: str, *arguments: object) -> Daemon:
        host = self.hosts.by_name[name]
        daemon = Daemon(role, name, self._folder, *arguments, host=host)
        self.daemons.append(daemon)
        return daemon.ready()

    def start_worker(self, name: str) -> Daemon:
        """Start a daemon on the host of this name."""
        return self._start("worker", name, "--aggregator", self.aggregator.address)

    def connections(self, worker: int) -> int:
        """Return how often a worker has connected."""
        return self.workers[worker].log_text().count("connected to aggregator")

    def result(self) -> dict[str, object]:
        """Return the result of the job, which must succeed."""
        code = self._submit.wait(LIMIT_SECONDS)
        output = self._output.read_text()
        assert code == 0, output
        found: dict[str, object] = json.loads(output.splitlines()[-1])
        return found


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    try:
        with Hosts(["optimizer", "aggregator", "worker-1", "worker-2"], BITS_PER_SECOND) as made:
            yield made
    except Skipped as reason:
        pytest.skip(str(reason))


@pytest.fixture
def config(corpus: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path, gpt_config(corpus))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.long
def test_a_worker_cut_off_in_a_step_comes_back(
    hosts: Hosts, tmp_path: Path, config: Path, undisturbed: Bits, direction: Direction
) -> None:
    with Network(hosts, tmp_path, config, workers=2) as network:
        network.aggregator.wait_log("Step: 3,")
        hosts.cut("worker-1", direction)
        network.aggregator.wait_log("worker worker-1 is gone")
        connections = network.connections(0)
        hosts.restore_link("worker-1", direction)
        assert network.result()["model_sha256"] == undisturbed.model_sha256
        eventually(lambda: network.connections(0) > connections, "worker-1 to be back")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.long
def test_a_worker_cut_off_while_it_joins(
    hosts: Hosts, tmp_path: Path, config: Path, undisturbed: Bits, direction: Direction
) -> None:
    with Network(hosts, tmp_path, config, workers=1) as network:
        network.aggregator.wait_log("Step: 1,")
        hosts.cut("worker-2", direction)
        network.start_worker("worker-2")
        network.aggregator.wait_log("Step: 4,")
        hosts.restore_link("worker-2", direction)
        assert network.result()["model_sha256"] == undisturbed.model_sha256


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.long
def test_an_optimizer_cut_off_around_a_checkpoint(
    hosts: Hosts, tmp_path: Path, config: Path, undisturbed: Bits, direction: Direction
) -> None:
    with Network(hosts, tmp_path, config, workers=2) as network:
        network.aggregator.wait_log(f"checkpoint of step {CHECKPOINT_EVERY}")
        hosts.cut("optimizer", direction)
        network.aggregator.wait_log(f"WARNING tiermesh: optimizer {network.optimizer.address}: ")
        hosts.restore_link("optimizer", direction)
        assert network.result()["model_sha256"] == undisturbed.model_sha256
