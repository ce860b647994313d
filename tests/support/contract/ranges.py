"""Calls of a whole model's step and of its ranges, on any device module."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from services.config.models import GPT2Config, LlamaConfig
from tests.support.contract.lock_step import LockStep
from tests.support.contract.steps import MODELS, device_config, make_job, open_configured_mesh
from tests.support.micro_batch import run_micro_batch
from tests.support.ranges import Ranges
from training.step import TrainingStep

CASES = [
    ("gpt2_recomputed", "single", (1, 1)),
    ("gpt2_bare", "ddp", (1, 8)),
    ("llama_bare", "fsdp", (1, 8)),
    ("gpt2_bare", "ddp_tp", (2, 4)),
    ("llama_recomputed", "fsdp_tp", (2, 4)),
]
"""Model, strategy and mesh. The bare models tie their embeddings."""

_OF_THE_HOST = re.compile(
    r"\w+#\d+ = |Tensor\(|Tensor\.|get_device_tensors\(|to_dtype\(|copy_host_to_device_tensor\("
)
"""Calls that carry values between host and mesh, and those that make options."""


def run_whole_and_ranges(
    model: str, strategy: str, mesh_shape: tuple[int, int], module: LockStep, folder: Path
) -> tuple[list[str], list[str]]:
    """Return the calls that compute a micro-batch and a held-out batch: of the whole model, and of two ranges.

    Raises:
        AssertionError: the ranges' gradients differ from the whole model's.
    """
    device = device_config(strategy, mesh_shape)
    config = make_job(model, device, folder)
    assert isinstance(config.model, GPT2Config | LlamaConfig) and model in MODELS
    # A block that is the model's last is not recomputed, but it is if it is the last of an earlier range.
    config = config.model_copy(update={"model": config.model.model_copy(update={"num_blocks": 2})})
    with open_configured_mesh(module, device) as mesh:
        step = TrainingStep(config, mesh)
        weights = step.initial_weights()
        for index, entry in enumerate(step.layout.entries):
            step.load(index, weights[entry.offset : entry.stop])
        module.reset()
        gradient = np.full(step.layout.elements, np.nan, np.float32)
        loss = np.float64(run_micro_batch(step, 0, 0, gradient))
        step.evaluate(0)
        whole = list(module.lines)
        step.close()
        ranges = Ranges(config, mesh, (1, 1))
        ranges.load()
        module.reset()
        ranges.forward(0, 0)
        assert [np.asarray(each).tobytes() for each in ranges.backward(0)] == [
            loss.tobytes(),
            gradient.tobytes(),
        ]
        ranges.evaluate(0)
        parts = list(module.lines)
    return [line for line in whole if not _OF_THE_HOST.match(line)], [
        line for line in parts if not _OF_THE_HOST.match(line)
    ]
