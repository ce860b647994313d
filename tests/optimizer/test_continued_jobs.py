"""N + M steps in two jobs give the bits of N + M steps in one, under every update rule and schedule."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos import cluster_pb2 as pb
from services.checkpoints.read import read_checkpoint
from services.config.job import JobConfig
from services.config.start import continued, pin_start
from tests.support.dialogues.engine import LAYOUT, EngineDialogue

STEPS = 12
CUTS = (1, 3, 5, 8, 11)
"""Steps of the first job: amid the warm-up, at its end, amid the hold, amid the decay, and before the last step."""
LIMIT_SECONDS = 240  # a busy disk may take seconds for each fsync

RULES: dict[str, dict[str, Any]] = {
    "adamw": {"type": "adamw", "weight_decay": 0.1},
    "amsgrad": {"type": "adamw", "amsgrad": True, "beta2": 0.9},
    "sgd": {"type": "sgd", "weight_decay": 0.1},
    "momentum": {"type": "sgd", "momentum": 0.9, "dampening": 0.5},
    "nesterov": {"type": "sgd", "momentum": 0.9, "nesterov": True},
    "no-op": {"type": "noop"},
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "identity": {"type": "identity"},
    "linear": {"type": "warmup_linear", "warmup_steps": 3},
    "cosine": {"type": "warmup_cosine", "warmup_steps": 3, "min_lr": 1e-4},
    "speedrun": {
        "type": "speedrun",
        "warmup_steps": 3,
        "hold_steps": 3,
        "min_lr": 1e-4,
        "beta1_warmup_steps": 9,
        "beta1_start": 0.8,
        "beta1_end": 0.95,
    },
    "step": {"type": "step", "step_size": 2, "gamma": 0.5},
}
QUICK = ("amsgrad", "speedrun")
"""Rule and schedule that `make test` tries."""


def job(steps: int, rule: dict[str, Any], schedule: dict[str, Any]) -> JobConfig:
    record = {
        "steps": steps,
        "model": {"model_type": "linear_regression", "num_features": 8, "num_targets": 4, "bias": False},
        "optimizer": {"lr": 0.01, **rule},
        "schedule": {"total_steps": STEPS, **schedule},
        "clip_grad_norm": 3.0,
    }
    return JobConfig.model_validate(record)


def gradient(step: int) -> np.ndarray:
    """Return the sum of a step's gradients; that of step 4 is not finite, so the step is skipped."""
    values = np.random.default_rng(step).standard_normal(LAYOUT.elements).astype(np.float32)
    if step == 4:
        values[3] = np.nan
    return values


async def train(dialogue: EngineDialogue, first: int, stop: int) -> None:
    for step in range(first, stop):
        await dialogue.step(step, gradient(step))
    while (await dialogue.next_message(pb.CheckpointWritten)).step != stop:
        pass


def result(folder: Path, name: str) -> tuple[bytes, dict[str, bytes]]:
    """Return the bits of a job's last weights and of its update rule's state."""
    last = read_checkpoint(folder / "checkpoints" / name / f"step-{STEPS:08d}")
    return last.weights.tobytes(), {key: array.tobytes() for key, array in last.optimizer_state.items()}


@pytest.mark.parametrize(
    ("rule", "schedule"),
    [
        pytest.param(rule, schedule, marks=() if (rule, schedule) == QUICK else pytest.mark.long)
        for rule in RULES
        for schedule in SCHEDULES
    ],
)
def test_two_jobs_give_the_bits_of_one(tmp_path: Path, rule: str, schedule: str) -> None:
    async def scenario(folder: Path, cut: int) -> None:
        first = job(cut, RULES[rule], SCHEDULES[schedule])
        dialogue = EngineDialogue(folder, first)
        try:
            await dialogue.begin()
            await train(dialogue, 0, cut)
            if cut < STEPS:
                sha256 = read_checkpoint(dialogue.root / f"step-{cut:08d}").model_sha256
                second = continued(first, "j", step=None, steps=STEPS, total_steps=None)
                await dialogue.go_on("k", pin_start(second, cut, sha256))
                await train(dialogue, cut, STEPS)
        finally:
            dialogue.close()

    def run(cut: int) -> tuple[bytes, dict[str, bytes]]:
        folder = tmp_path / str(cut)
        asyncio.run(asyncio.wait_for(scenario(folder, cut), LIMIT_SECONDS))
        return result(folder, "j" if cut == STEPS else "k")

    whole = run(STEPS)
    for cut in CUTS:
        assert run(cut) == whole, f"{cut} + {STEPS - cut} steps"
