"""A job with a pipeline trains to the bits of the same job without one, and with as many workers as pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.config.job import JobConfig
from services.config.load import load_job
from tests.support.cluster.bits import gpt_config, write_config, write_corpus
from tests.support.training_runs import train

STEPS = 3
STAGES = {"enabled": True, "num_workers": 4, "pipeline_parallel_config": {"blocks_per_rank": {0: 1, 1: 1}}}
INTERLEAVED = {
    **STAGES,
    "num_workers": 4,
    "pipeline_parallel_config": {
        "blocks_per_rank": "auto", "num_stages": 2, "ranges_per_rank": 2, "schedule": "interleaved_1f1b",
    },
}  # fmt: skip


def load(folder: Path, blocks: int, **hosts: Any) -> JobConfig:
    """Return a GPT-2 with dropout and clipping."""
    config = gpt_config(write_corpus(folder), gradient_accumulation_steps=2, batch_size=1)
    config["transformer_config"] |= {"num_blocks": blocks, "embedding_dim": 80}
    return load_job(write_config(folder, config | {"multihost_config": hosts}))[0]


@pytest.mark.parametrize(("blocks", "hosts"), [(2, STAGES), (4, INTERLEAVED)], ids=["1f1b", "interleaved"])
def test_a_pipeline_changes_no_bit(blocks: int, hosts: dict[str, Any], tmp_path: Path) -> None:
    piped, plain = load(tmp_path, blocks, **hosts), load(tmp_path, blocks, enabled=True, num_workers=2)
    assert piped.stages == 2 and plain.pipeline is None
    losses, weights = train(piped, STEPS)
    plain_losses, plain_weights = train(plain, STEPS)
    assert losses == plain_losses and np.array_equal(weights, plain_weights)
