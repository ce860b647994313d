"""Each update rule and schedule gives the same bits in 2 and 3 tiers and with shards, and its state is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.checkpoints.read import list_checkpoints, read_checkpoint
from tests.support.cluster.bits import CHECKPOINT_EVERY, Bits, bits, gpt_config, spec_of
from tests.support.cluster.harness import Cluster

SPEEDRUN = {
    "training_config": {"scheduler_type": "speedrun", "optimizer": {"type": "AdamW", "amsgrad": True}},
    "scheduler_config": {"max_lr": 0.01, "warmup_steps": 2, "hold_steps": 3, "beta1_warmup_steps": 8},
}
STEP = {
    "training_config": {"scheduler_type": "step", "optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9}},
    "scheduler_config": {"step_size": 2, "gamma": 0.5},
}
NO_OP = {"training_config": {"optimizer": {"type": "NoOp"}}}


def optimizer_spec(folder: Path, corpus: Path, settings: dict[str, Any]) -> str:
    folder.mkdir()
    config = gpt_config(corpus, project_name="rules", max_steps=2 * CHECKPOINT_EVERY)
    config["training_config"] |= settings["training_config"]
    return spec_of(folder, config | {"scheduler_config": settings.get("scheduler_config")})


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "state"),
    [
        (SPEEDRUN, {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "applied"}),
        (STEP, {"momentum_buffer", "applied"}),
        (NO_OP, {"applied"}),
    ],
    ids=["speedrun", "step", "no-op"],
)
def test_the_same_bits_in_all_tiers_and_after_a_restart(
    tmp_path: Path, corpus: Path, settings: dict[str, Any], state: set[str]
) -> None:
    spec = optimizer_spec(tmp_path / "spec", corpus, settings)
    found: list[Bits] = []
    for tiers, shards in ((2, 0), (2, 2), (3, 0)):
        with Cluster(tmp_path / f"{tiers}-{shards}", tiers=tiers, workers=1, shards=shards) as cluster:
            job = cluster.submit(spec)
            if tiers == 3:
                cluster.wait_step(job, CHECKPOINT_EVERY + 1)
                cluster.serving("optimizer").kill()
                cluster.start_optimizer()
            found.append(bits(cluster.finish(job)))
            newest = list_checkpoints(cluster.checkpoints(job))[-1]
            assert read_checkpoint(newest).optimizer_state.keys() == state
    assert found[1:] == found[:1] * 2
