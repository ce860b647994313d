"""Epochs over files of token ids: the same windows on any worker and after any restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.cluster.bits import CHECKPOINT_EVERY, Bits, bits, gpt_config, spec_of
from tests.support.cluster.harness import Cluster

pytestmark = pytest.mark.long  # tests of the parts run in `make test`

WINDOWS = (28, 46)
"""Training windows of the two files."""
VOCABULARY = 50


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a job of two epochs over two files of token ids, without a tokenizer; its steps cross their ends."""
    folder = tmp_path_factory.mktemp("ids")
    random = np.random.default_rng(3)
    for number, windows in enumerate(WINDOWS):
        ids = random.integers(0, VOCABULARY, round((windows + 32) / 0.9)).astype("<u2")
        ids.tofile(folder / f"{number}.u16.bin")
    files = [str(folder / f"{number}.u16.bin") for number in range(len(WINDOWS))]
    changes: dict[str, Any] = {"data_path": files, "num_epochs": 2, "project_name": "epochs"}
    config = gpt_config(folder, **changes)
    del config["training_config"]["tokenizer_type"]
    config["transformer_config"]["vocab_size"] = VOCABULARY
    return spec_of(folder, config)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, spec: str) -> Bits:
    """Return the result of one worker without any fault."""
    with Cluster(tmp_path_factory.mktemp("alone"), workers=1) as cluster:
        ended = cluster.finish(cluster.submit(spec))
        assert ended.step == -(-2 * sum(WINDOWS) // 14)  # 7 micro-batches of 2 windows a step
        return bits(ended)


def test_token_ids_in_epochs_with_a_worker_killed(tmp_path: Path, spec: str, alone: Bits) -> None:
    with Cluster(tmp_path, tiers=3, workers=2) as cluster:
        job = cluster.submit(spec)
        cluster.wait_step(job, 3)
        cluster.workers[0].kill()
        assert bits(cluster.finish(job)) == alone


def test_epochs_go_on_at_the_same_place_after_a_restart_of_all(
    tmp_path: Path, spec: str, alone: Bits
) -> None:
    with Cluster(tmp_path, tiers=3, workers=2) as cluster:
        job = cluster.submit(spec)
        cluster.wait_step(job, CHECKPOINT_EVERY + 2)
        for daemon in (*cluster.workers, cluster.aggregator, cluster.serving("optimizer")):
            daemon.kill()
        cluster.start_aggregator()
        cluster.start_optimizer()
        cluster.start_worker()
        assert bits(cluster.finish(job)) == alone
