"""The worker's own training step of each model, on whatever device module, and the golden sequence of its calls.

A golden file changes only with a change of the worker's ops that was meant: read the diff, then run
`TIERMESH_REWRITE_GOLDEN=1 pytest tests/contract` and commit the files with what changed them.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from mesh.device import Mesh
from services.config import DataConfig, DeviceConfig, GPT2Config, JobConfig, LinearRegressionConfig
from worker.step import TrainingStep

GOLDEN = Path(__file__).parent / "golden"
REWRITE = "TIERMESH_REWRITE_GOLDEN"

MODELS: dict[str, GPT2Config | LinearRegressionConfig] = {
    # Heads of whole tiles, everything that GPT-2 has: trained positions, biases, dropout, exact gelu, an own head.
    "gpt2": GPT2Config(
        num_heads=2,
        embedding_dim=64,
        num_blocks=2,
        max_sequence_length=64,
        dropout_prob=0.1,
        weight_tying=False,
        positional_embedding_type="trainable",
        bias=True,
        activation="gelu",
    ),
    # Heads that fill no tile, and the other side of every option.
    "gpt2_bare": GPT2Config(
        num_heads=4,
        embedding_dim=64,
        num_blocks=1,
        max_sequence_length=32,
        dropout_prob=0.0,
        weight_tying=True,
        positional_embedding_type="fixed",
        bias=False,
        activation="gelu_tanh",
    ),
    "linear_regression": LinearRegressionConfig(num_features=64, num_targets=32, training_samples=200),
}

_TEXT = "".join(f"{number} times {number} is {number * number}.\n" for number in range(300))


def job(model: str, folder: Path) -> JobConfig:
    """A job of `model` for a LoudBox; its corpus, where it has one, is written to `folder`."""
    data = None
    if model != "linear_regression":
        path = folder / "text.txt"
        path.write_text(_TEXT)
        data = DataConfig(path=str(path), sha256=hashlib.sha256(_TEXT.encode()).hexdigest())
    return JobConfig(
        seed=7,
        batch_size=16,
        validation_batch_size=16,
        model=MODELS[model],
        data=data,
        device=DeviceConfig(mesh_shape=(1, 8), enable_ddp=True),
    )


def run_step(model: str, mesh: Mesh, folder: Path) -> tuple[float, np.ndarray[Any, Any]]:
    """Load the initial weights, run one micro-batch and one held-out batch; loss and gradient of the former."""
    step = TrainingStep(job(model, folder), mesh)
    weights = step.initial_weights()
    for index, entry in enumerate(step.layout.entries):
        step.load(index, weights[entry.offset : entry.stop])
    gradient = np.full(step.layout.elements, np.nan, np.float32)
    loss = step.micro_batch(0, 0, gradient, lambda offset: None)
    step.evaluate(0)
    step.close()
    return loss, gradient


def hold_to_golden(model: str, lines: list[str]) -> None:
    """Raise AssertionError, with the difference, unless `lines` are those of the golden file (or write it)."""
    path = GOLDEN / f"{model}.txt"
    if os.environ.get(REWRITE):
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    golden = path.read_text().splitlines()
    if golden != lines:
        difference = list(difflib.unified_diff(golden, lines, str(path.name), "this run", lineterm="", n=1))
        shown = "\n".join(difference[:40])
        raise AssertionError(f"the step of {model} calls other ops than {path.name} has:\n{shown}\n{__doc__}")
