"""Losses of short runs, held to what they were.

The rule for changing them: a change that moves a loss by more than the tolerance changes what people's jobs compute.
Say why in the commit, and rewrite them with

    TIERMESH_REWRITE_GOLDEN=1 python -m pytest tests/golden

The tolerance is that of another CPU's or BLAS's rounding over this many steps, not of another computation.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from mesh.device import open_mesh
from optimizer.master_tensors import MasterTensors
from services.config.job import JobConfig
from services.config.load import load_job
from services.tensors.layout import chunk_range
from training.step import TrainingStep
from worker.node_sum import NodeSum

GOLDEN = Path(__file__).parent / "losses.json"
STEPS = 12
TOLERANCE = 2e-4
RELATIVE_TOLERANCE = 2e-5  # for errors that are in the hundreds
TEXT = "".join(
    f"{number} times {number} is {number * number}, and {number + 1} comes next.\n" for number in range(400)
)
HERE = Path(__file__).parent
SHIPPED = Path(__file__).parents[2] / "configs" / "training_configs"
JOBS: dict[str, tuple[Path, list[str]]] = {
    "gpt2": (HERE / "gpt2.yaml", []),
    "gpt2_bare": (
        HERE / "gpt2.yaml",
        ["transformer_config.bias=false", "weight_tying=enabled", "positional_embedding_type=fixed"],
    ),
    "llama": (HERE / "llama.yaml", []),
    "llama_recomputed": (
        HERE / "llama.yaml",
        ["runner_type=memory_efficient", "weight_tying=enabled", "num_heads=2", "num_groups=1"],
    ),
    "linear_regression": (SHIPPED / "linear_regression.yaml", []),
    "mlp": (SHIPPED / "mlp.yaml", ["training_config.optimizer.lr=0.01"]),
}


def losses_of(config: JobConfig) -> list[float]:
    """The losses of the first steps: what the cluster computes, in one process and without a wire."""
    losses = []
    with open_mesh((1, 1), backend="emulator", dtype="float32") as mesh:
        step = TrainingStep(config, mesh)
        tensors = MasterTensors(config, step.layout)
        tensors.weights[:] = step.initial_weights()
        chunks = range(step.layout.chunks)
        for at in range(STEPS):
            for index, entry in enumerate(step.layout.entries):
                step.load(index, tensors.weights[entry.offset : entry.stop])
            total = np.empty(step.layout.elements, np.float32)
            node_sum = NodeSum(total, config.micro_batches, lambda offset: None)
            of_step = [
                node_sum.add_leaf(
                    lambda out, ready, at=at, index=index: step.micro_batch(at, index, out, ready)
                )
                for index in range(config.micro_batches)
            ]
            losses.append(float(np.mean(of_step)))
            for chunk in chunks:
                tensors.stage(chunk, total[slice(*chunk_range(step.layout.elements, chunk))])
            norm, finite, rate = tensors.measure(at)
            assert finite
            tensors.begin_update(norm, rate)
            for chunk in chunks:
                tensors.update(chunk)
    return losses


@pytest.mark.parametrize("name", JOBS)
def test_losses_are_what_they_were(name: str, tmp_path: Path) -> None:
    file, overrides = JOBS[name]
    if file.parent == HERE:
        corpus = tmp_path / "corpus.txt"
        corpus.write_text(TEXT)
        overrides = [*overrides, f"data_path={corpus}"]
    losses = losses_of(load_job(file, overrides)[0])
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("TIERMESH_REWRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps({**golden, name: losses}, indent=1) + "\n")
        return
    assert losses == pytest.approx(golden[name], rel=RELATIVE_TOLERANCE, abs=TOLERANCE)
    assert losses[-1] < losses[0], "it learns"
