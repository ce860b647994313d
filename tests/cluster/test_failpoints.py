"""Processes kill themselves at failpoints and at random times. The job ends in the bits of an undisturbed run."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from protos import jobs_pb2 as jobs
from services.errors import Failed
from services.instrumentation.failpoints import FAILPOINTS
from tests.support.cluster.bits import Bits, bits, regression_config, spec_of
from tests.support.cluster.daemon import LIMIT_SECONDS, Daemon, eventually
from tests.support.cluster.harness import ENDED, Cluster

pytestmark = pytest.mark.long  # tests of the parts run in `make test`

EVERY_ROLE = "stream.mid-message"
"""Failpoint that each role reaches when it sends tensors over a stream."""
ALL = [
    name
    for name in FAILPOINTS
    if not name.startswith(("shard.", "memory.", "queue.")) and ".prune." not in name
]
"""All failpoints except those of test_shard_failpoints.py, test_backup.py and test_prune.py."""
SHORT = {
    "worker": ["worker.gradient-ready=kill@2", "stream.mid-message=kill@3"],
    "aggregator": ["aggregator.save.before=kill@3", "aggregator.epoch.after=kill@1"],
    "optimizer": [
        "optimizer.commit.after=kill@3",
        "checkpoint.mid-file=kill@1",
        "plane.update.mid=kill@2",
    ],
}
"""Kills in order, one for each process of a role."""


def roles_of(name: str) -> list[str]:
    """Return the roles that reach a failpoint, in 3 tiers."""
    role = name.partition(".")[0]
    if name == EVERY_ROLE:
        return ["worker", "aggregator", "optimizer"]
    if role == "files":
        return ["aggregator", "optimizer"]
    return ["optimizer"] if role in ("checkpoint", "plane") else [role]


class Killer:
    """Kills of the next process of each role: a failpoint, or a time in seconds after its start."""

    def __init__(self, plan: dict[str, list[str | float]], tiers: int) -> None:
        self._left = {role: deque(kills) for role, kills in plan.items()}
        if tiers == 2:
            # The optimizer is in the aggregator's process.
            self._left["aggregator"].extend(self._left.pop("optimizer"))
        self._ends: dict[str, float] = {}
        self.timed = 0

    @property
    def left(self) -> int:
        """Number of kills that no running process is waiting for."""
        return sum(map(len, self._left.values()))

    def failpoints(self, role: str) -> str:
        """Return the failpoint of a process that is about to start."""
        self._ends.pop(role, None)
        kill = self._left[role].popleft() if self._left[role] else ""
        if isinstance(kill, str):
            return kill
        self._ends[role] = time.monotonic() + kill
        return ""

    def look_after(self, cluster: Cluster) -> None:
        """Kill processes whose time has come, and restart dead ones."""
        for role in ("optimizer", "aggregator", "worker"):
            if role == "optimizer" and cluster.optimizer is None:
                continue
            daemon = cluster.serving(role)
            if role in self._ends and time.monotonic() >= self._ends[role]:
                del self._ends[role]
                if daemon.process.poll() is None:
                    daemon.kill()
                    self.timed += 1
            if daemon.process.poll() is not None:
                self._revive(cluster, daemon)

    def _revive(self, cluster: Cluster, daemon: Daemon) -> None:
        """Start a process until one lives long enough to serve."""
        while daemon.process.poll() is not None:
            assert daemon.process.returncode == -signal.SIGKILL, daemon.log_text()[-2000:]
            with suppress(Failed):  # It died at a failpoint during its start.
                if daemon.role == "worker":
                    cluster.workers.clear()
                    cluster.start_worker(name=daemon.name, wait=False)
                elif daemon.role == "aggregator":
                    cluster.start_aggregator()
                else:
                    cluster.start_optimizer()
            daemon = cluster.daemons[-1]


def finish(cluster: Cluster, killer: Killer, job: str, limit_seconds: float) -> jobs.Job:
    """Kill and restart processes until the job has ended."""
    ended = jobs.Job()

    def look() -> bool:
        killer.look_after(cluster)
        with suppress(grpc.RpcError):
            ended.CopyFrom(cluster.stub.Get(jobs.JobRequest(job=job), timeout=5))
        return ended.state in ENDED

    eventually(look, f"the end of job {job}, with {killer.left} kills to come", limit_seconds)
    return ended


def kills_of(log: Path) -> Counter[str]:
    """Return how often each failpoint killed a process."""
    lines = [line.split() for line in log.read_text().splitlines()]
    return Counter(words[0] for words in lines if words[-1] == "kill")


def hits_of(log: Path) -> Counter[str]:
    """Return how often each failpoint was reached."""
    return Counter(line.split()[0] for line in log.read_text().splitlines())


def table(log: Path, timed: int) -> str:
    """Return a summary of failpoints, hits and kills."""
    hits, kills = hits_of(log), kills_of(log)
    rows = [f"{name:<30}{hits[name]:>8}{kills[name]:>8}" for name in FAILPOINTS if hits[name]]
    return "\n".join(
        [f"{'failpoint':<30}{'hits':>8}{'kills':>8}", *rows, f"{'at a random time':<38}{timed:>8}"]
    )


def spec(folder: Path, steps: int) -> str:
    """Return a job of cheap steps whose chunks are long enough for a message of several parts."""
    config = regression_config(max_steps=steps, model_save_interval=3)
    config["linear_regression_config"] = {"num_features": 2048, "num_targets": 2, "training_samples": 200}
    return spec_of(folder, config)


def run_undisturbed(folder: Path, spec_json: str) -> Bits:
    """Return the result without faults."""
    with Cluster(folder, workers=1) as cluster:
        return bits(cluster.finish(cluster.submit(spec_json)))


def killed(
    folder: Path, spec_json: str, tiers: int, plan: dict[str, list[str | float]], limit_seconds: float
) -> tuple[Bits, Killer]:
    """Return the result of a run with all kills of the plan."""
    killer = Killer(plan, tiers)
    # Shared memory would bypass the streams.
    options = ("--no-shared-memory",)
    with Cluster(folder, tiers=tiers, workers=1, options=options, failpoints=killer.failpoints) as cluster:
        ended = finish(cluster, killer, cluster.submit(spec_json), limit_seconds)
        print(f"\n{tiers} tiers\n{table(folder / 'failpoints.log', killer.timed)}")
        assert ended.state == jobs.SUCCEEDED, ended
        return bits(ended), killer


def names_of(kills: Iterable[str | float]) -> Counter[str]:
    """Return the failpoints of a plan's kills."""
    return Counter(kill.partition("=")[0] for kill in kills if isinstance(kill, str))


@pytest.fixture(scope="module")
def short_undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Bits:
    folder = tmp_path_factory.mktemp("undisturbed")
    return run_undisturbed(folder, spec(folder, 40))


@pytest.mark.parametrize("tiers", [pytest.param(2), 3])
def test_a_kill_at_each_kind_of_place(tmp_path: Path, tiers: int, short_undisturbed: Bits) -> None:
    plan: dict[str, list[str | float]] = {role: list(kills) for role, kills in SHORT.items()}
    result, _ = killed(tmp_path / "cluster", spec(tmp_path, 40), tiers, plan, LIMIT_SECONDS)
    assert result == short_undisturbed
    wanted = names_of(kill for kills in plan.values() for kill in kills)
    assert kills_of(tmp_path / "cluster" / "failpoints.log") == wanted


@pytest.mark.slow
@pytest.mark.parametrize("tiers", [2, 3])
def test_a_hundred_kills(tmp_path: Path, tiers: int) -> None:
    draw = random.Random(tiers)
    steps, timed, total = 600, 20, 100
    kills: list[tuple[str, str | float]] = [
        (draw.choice(("worker", "aggregator", "optimizer")), draw.uniform(0.5, 4.0)) for _ in range(timed - 3)
    ]
    places = [(role, name) for name in ALL for role in roles_of(name)]
    while len(kills) < total - 3:
        role, name = places[len(kills) % len(places)]
        kills.append(
            (role, f"{name}=kill@{1 if 'epoch' in name or 'generation' in name else draw.randint(1, 3)}")
        )
    draw.shuffle(kills)
    # Each role starts with a timed kill, so that no process dies before the job is submitted.
    plan: dict[str, list[str | float]] = {"worker": [1.0], "aggregator": [2.0], "optimizer": [3.0]}
    for role, kill in kills:
        plan[role].append(kill)
    result, killer = killed(tmp_path / "cluster", spec(tmp_path, steps), tiers, plan, 1500.0)
    found = kills_of(tmp_path / "cluster" / "failpoints.log")
    assert set(found) == set(ALL), "every failpoint killed"
    assert found.total() + killer.timed >= total
    assert result == run_undisturbed(tmp_path / "undisturbed", spec(tmp_path, steps))
