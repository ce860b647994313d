"""Check the losses of short runs against stored ones.

A change that moves a loss by more than the tolerance changes what users' jobs compute. Say why in the commit, and
rewrite the stored losses with

    TIERMESH_REWRITE_GOLDEN=1 python -m pytest tests/golden

The tolerance allows for another CPU's or BLAS's rounding over this many steps. It does not allow for another
computation, so each job here must be well conditioned: rounding must not grow from step to step.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from services.config.load import load_job
from tests.support.training_runs import train

GOLDEN = Path(__file__).parent / "losses.json"
STEPS = 12
TOLERANCE = 2e-4
RELATIVE_TOLERANCE = 2e-5
"""Tolerance of the regressions, whose losses are in the hundreds."""
TEXT = "".join(
    f"{number} times {number} is {number * number}, and {number + 1} comes next.\n" for number in range(400)
)
OWN_JOBS = Path(__file__).parent
SHIPPED_JOBS = Path(__file__).parents[2] / "configs" / "training_configs"
JOBS: dict[str, tuple[Path, list[str]]] = {
    "gpt2": (OWN_JOBS / "gpt2.yaml", []),
    "gpt2_bare": (
        OWN_JOBS / "gpt2.yaml",
        ["transformer_config.bias=false", "weight_tying=enabled", "positional_embedding_type=fixed"],
    ),
    "llama": (OWN_JOBS / "llama.yaml", []),
    "llama_recomputed": (
        OWN_JOBS / "llama.yaml",
        ["runner_type=memory_efficient", "weight_tying=enabled", "num_heads=2", "num_groups=1"],
    ),
    "linear_regression": (SHIPPED_JOBS / "linear_regression.yaml", []),
    # AdamW scales every gradient to about the learning rate, even one that is nothing but rounding: that of a ReLU
    # unit which is active for one sample on one CPU and for none on another. With the usual epsilon of 1e-8, losses
    # on BLAS kernels of different CPUs are 1e-4 apart (relative) after 12 steps; with 1e-3 they are 1e-7 apart.
    "mlp": (
        SHIPPED_JOBS / "mlp.yaml",
        ["training_config.optimizer.lr=0.01", "training_config.optimizer.epsilon=1e-3"],
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_losses_are_what_they_were(name: str, tmp_path: Path) -> None:
    file, overrides = JOBS[name]
    if file.parent == OWN_JOBS:
        corpus = tmp_path / "corpus.txt"
        corpus.write_text(TEXT)
        overrides = [*overrides, f"data_path={corpus}"]
    losses, _ = train(load_job(file, overrides)[0], STEPS)
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("TIERMESH_REWRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps({**golden, name: losses}, indent=1) + "\n")
        return
    assert losses == pytest.approx(golden[name], rel=RELATIVE_TOLERANCE, abs=TOLERANCE)
    assert losses[-1] < losses[0], "training reduces the loss"
