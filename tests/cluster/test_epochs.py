"""Epochs over files of token ids: the same windows on any worker and after any restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.cluster.bits import CHECKPOINT_EVERY, Bits, bits, gpt_config, spec_of
from tests.support.cluster.harness import Cluster
from tests.support.cluster.tally_worker import TENSORS

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


TALLIED_WINDOWS = (200, 312)
MODEL = "tests.support.cluster.tally_worker:TallyStep"
ALLOW = ("--allow-models", MODEL)
"""Training windows of the two files: an epoch of 16 steps of 8 micro-batches of 4 windows."""
EPOCHS, TALLIED_MICRO_BATCHES = 3, 8


def tally_spec(folder: Path) -> tuple[str, list[int]]:
    """Return a job for tests/support/cluster/window_tally_worker.py, and the first id of each window."""
    first_ids: list[int] = []
    files, ids = [], 0
    for windows in TALLIED_WINDOWS:
        files.append(str(folder / f"{windows}.u16.bin"))
        count = -(-(windows + 32) * 10 // 9)
        np.arange(ids, ids + count, dtype="<u2").tofile(files[-1])
        first_ids += range(ids, ids + windows)
        ids += count
    config = gpt_config(
        folder,
        data_path=files,
        num_epochs=EPOCHS,
        max_steps=1000,
        batch_size=4,
        gradient_accumulation_steps=TALLIED_MICRO_BATCHES,
        use_clip_grad_norm=False,
        optimizer={"type": "SGD", "lr": 1.0},
    )
    del config["training_config"]["tokenizer_type"]
    # An own model has a maximum alone, which the invented layout is below.
    config["transformer_config"] = {"model_type": MODEL, "max_sequence_length": 32, "vocab_size": ids}
    return spec_of(folder, config), first_ids


@pytest.mark.parametrize("tiers", [2, 3])
def test_each_window_is_drawn_once_an_epoch_whatever_is_killed(tmp_path: Path, tiers: int) -> None:
    spec, first_ids = tally_spec(tmp_path)
    module = "tests.support.cluster.window_tally_worker"
    with Cluster(tmp_path / "cluster", tiers=tiers, worker_module=module) as cluster:
        for _ in range(3):
            cluster.start_worker(*ALLOW)
        job = cluster.submit(spec)
        cluster.wait_step(job, 6)
        cluster.workers.pop(0).kill()
        cluster.start_worker(*ALLOW, name="another")
        cluster.wait_step(job, 13)
        cluster.aggregator.kill()
        cluster.start_aggregator()
        if cluster.optimizer is not None:
            cluster.wait_step(job, 22)
            cluster.optimizer.kill()
            cluster.start_optimizer()
        cluster.wait_step(job, 34)
        for daemon in (*cluster.workers, cluster.aggregator, cluster.optimizer):
            if daemon is not None:
                daemon.kill()
        cluster.start_aggregator()
        if cluster.optimizer is not None:
            cluster.start_optimizer()
        cluster.start_worker(*ALLOW, name="last")
        ended = cluster.finish(job)
    assert ended.step == EPOCHS * sum(TALLIED_WINDOWS) // (4 * TALLIED_MICRO_BATCHES)
    tensors = load_file(Path(ended.checkpoint) / "model.safetensors")
    draws = np.concatenate([tensors[f"t{index}"] for index in range(TENSORS)]) * -TALLIED_MICRO_BATCHES
    expected = np.zeros_like(draws)
    expected[first_ids] = EPOCHS
    np.testing.assert_array_equal(draws, expected)
