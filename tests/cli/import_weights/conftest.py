"""A model with the weights of a trained one, as a checkpoint of ours and as a file of tt-train's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from mesh.device import open_mesh
from services.checkpoints.write import write_checkpoint
from services.config.load import load_job
from tests.support.tt_train_weights import (
    Float32Array,
    pack_entries,
    parameter_entries,
    tensor_entries,
    tt_train_parameters,
)
from training.step import TrainingStep

TEXT = "".join(f"{number} times {number} is {number * number}.\n" for number in range(200))
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "num_heads": 2, "embedding_dim": 64, "num_blocks": 2, "max_sequence_length": 32,
    "dropout_prob": 0.0, "vocab_size": 96,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_heads": 4, "num_groups": 2, "embedding_dim": 128, "intermediate_dim": 192,
    "num_blocks": 2, "max_sequence_length": 32, "dropout_prob": 0.0, "vocab_size": 96, "theta": 500000.0,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt2-tied": GPT2 | {"weight_tying": "enabled"},
    "llama": LLAMA,
    "llama-tied": LLAMA | {"weight_tying": "enabled"},
}


@dataclass(frozen=True)
class Trained:
    """A trained model.

    Attributes:
        job: its config.
        checkpoint: folder of its checkpoint.
        parameters: its parameters, as tt-train has them.
        loss: its loss of the first held-out batch.
    """

    job: Path
    checkpoint: Path
    parameters: Mapping[str, Float32Array]
    loss: float

    def entries(self) -> dict[str, bytes]:
        """Return the keys and values of tt-train's file."""
        prefix = next(iter(self.parameters)).split("/")[0]
        return parameter_entries(prefix, self.parameters)

    def save(self, path: Path) -> Path:
        """Write tt-train's file, with an optimizer's state and a schedule's."""
        state = tensor_entries("adamw/exp_avg/transformer/ln_fc/gamma/value", np.ones(64, np.float32))
        path.write_bytes(pack_entries({**self.entries(), **state, "scheduler/m_last_step": b"\x92\x06\x07"}))
        return path


def evaluate(job: Path, *overrides: str, noise: bool = False) -> tuple[float, TrainingStep, Float32Array]:
    """Return the loss of a job's first held-out batch with its initial weights, and both."""
    config, _ = load_job(job, overrides)
    with open_mesh((1, 1), backend="emulator", dtype="float32") as mesh:
        step = TrainingStep(config, mesh)
        weights = step.initial_weights()
        if (
            noise
        ):  # no zeros, ones or equal rows that would hide a mistake, but some numbers without a fraction
            random = np.random.Generator(np.random.PCG64(1))
            weights += np.float32(0.1) * random.standard_normal(weights.size, np.float32)
            weights[random.integers(0, weights.size, 200)] = random.integers(-3, 4, 200)
        for index, entry in enumerate(step.layout.entries):
            step.load(index, weights[entry.offset : entry.stop])
        loss, tokens = step.evaluate(0)
        return loss / tokens, step, weights


def write_job(folder: Path, model: Mapping[str, Any]) -> Path:
    (folder / "text.txt").write_text(TEXT)
    (folder / "job.yaml").write_text(
        json.dumps(
            {
                "training_config": {"data_path": "text.txt", "batch_size": 2, "max_steps": 2},
                "transformer_config": dict(model),
            }
        )
    )
    return folder / "job.yaml"


@pytest.fixture(params=MODELS)
def trained(request: pytest.FixtureRequest, tmp_path: Path) -> Trained:
    model = MODELS[request.param]
    job = write_job(tmp_path, model)
    loss, step, weights = evaluate(job, noise=True)
    config, _ = load_job(job)
    checkpoint = write_checkpoint(
        tmp_path / "run", job="j", generation=1, step=3, config_json=config.to_json(), layout=step.layout,
        weights=weights, optimizer_state={}, files=step.checkpoint_files(),
    ).path  # fmt: skip
    tensors = load_file(checkpoint / "model.safetensors")
    parameters = tt_train_parameters(tensors, model["num_heads"], model.get("num_groups", 0))
    return Trained(job, checkpoint, parameters, loss)
