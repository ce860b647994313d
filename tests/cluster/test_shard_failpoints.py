"""Shards kill themselves at failpoints. The job ends in the bits of an undisturbed process without shards."""

from __future__ import annotations

import random
import signal
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import pytest

from protos import jobs_pb2 as jobs
from services.instrumentation.failpoints import FAILPOINTS
from services.tensors.layout import CHUNK_ELEMENTS
from tests.cluster.test_failpoints import EVERY_ROLE, finish, kills_of, names_of, run_undisturbed, table
from tests.support.cluster.bits import Bits, bits, regression_config, spec_of
from tests.support.cluster.daemon import LIMIT_SECONDS
from tests.support.cluster.harness import Cluster

FEATURES = 2048
PLACES = [*(name for name in FAILPOINTS if name.startswith(("plane.", "shard.", "memory."))), EVERY_ROLE]
SHORT = ["plane.update.mid=kill@2", "memory.read=kill@2", "memory.write=kill@2"]
"""Failpoints of the processes. The third is within a part of a checkpoint, which comes after the job's layout."""


class ShardKiller:
    """Failpoints of a shard's next processes, in order."""

    def __init__(self, kills: Sequence[str]) -> None:
        self._left = deque(kills)

    @property
    def left(self) -> int:
        """Number of kills that no running process is waiting for."""
        return len(self._left)

    def failpoints(self, role: str) -> str:
        """Return the failpoint of a process that is about to start."""
        return self._left.popleft() if role == "shard" and self._left else ""

    def look_after(self, cluster: Cluster) -> None:
        """Restart dead shards."""
        for number, shard in enumerate(cluster.shards):
            if shard.process.poll() is not None:
                assert shard.process.returncode == -signal.SIGKILL, shard.log_text()[-2000:]
                cluster.start_shard(number)


def spec(folder: Path, steps: int) -> str:
    """Return a job with three chunks, so that one shard has two."""
    config = regression_config(max_steps=steps, model_save_interval=3)
    targets = 3 * CHUNK_ELEMENTS // FEATURES - 10
    config["linear_regression_config"] = {
        "num_features": FEATURES,
        "num_targets": targets,
        "training_samples": 200,
    }
    return spec_of(folder, config)


def killed(folder: Path, spec_json: str, kills: Sequence[str], limit_seconds: float) -> Bits:
    """Return the result of a run in which all of these kills happen."""
    killer = ShardKiller(kills)
    options = ("--no-shared-memory",)
    with Cluster(folder, workers=1, shards=2, options=options, failpoints=killer.failpoints) as cluster:
        ended = finish(cluster, killer, cluster.submit(spec_json), limit_seconds)
        print(f"\n2 shards\n{table(folder / 'failpoints.log', timed=0)}")
        assert ended.state == jobs.SUCCEEDED, ended
        assert kills_of(folder / "failpoints.log") == names_of(kills)
        return bits(ended)


@pytest.mark.long
def test_a_kill_within_an_update_a_checkpoint_and_a_recovery(tmp_path: Path) -> None:
    steps = spec(tmp_path, 12)
    assert killed(tmp_path / "killed", steps, SHORT, LIMIT_SECONDS) == run_undisturbed(
        tmp_path / "undisturbed", steps
    )


@pytest.mark.slow
def test_kills_at_every_place_of_a_shard(tmp_path: Path) -> None:
    draw = random.Random(1)
    kills = [f"{name}=kill@{draw.randint(1, 3)}" for name in PLACES * 3]
    draw.shuffle(kills)
    steps = spec(tmp_path, 300)
    assert killed(tmp_path / "killed", steps, kills, 600.0) == run_undisturbed(
        tmp_path / "undisturbed", steps
    )
