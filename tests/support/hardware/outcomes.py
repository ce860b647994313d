"""What one training step gives on some device, and how far two devices may be apart in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mesh.device import open_mesh
from services.config.models import CustomConfig
from tests.support.contract.steps import MODELS, STRATEGIES, device_config, make_job
from training.parameter_placement import axes_of
from training.step import TrainingStep

Shape = tuple[int, int]

TRAINED = [name for name, config in MODELS.items() if not isinstance(config, CustomConfig)]
"""The contract's models, but for a user's own."""

# About three times what rounding to bfloat16 costs on the emulator, which test_comparison.py measures: losses 0.02 %,
# gradients 1.5 %, single parameters 3 %. Devices round more often, within an operation, and approximate functions.
LOSS_BOUND = 0.002
"""Largest relative difference of the losses."""
GRADIENT_BOUND = 0.05
"""Largest norm of the difference of the gradients, over the norm of the reference."""
PARAMETER_BOUND = 0.1
"""The same for each parameter alone, of those with a thousandth or more of the whole gradient's norm."""
NEGLIGIBLE = 1e-3


@dataclass(frozen=True)
class Outcome:
    """Of one micro-batch with the initial weights: its mean loss, and its gradient by parameter."""

    loss: float
    gradients: dict[str, np.ndarray[Any, Any]]


def fits(strategy: str, shape: Shape) -> bool:
    """Whether a strategy uses each axis of several devices."""
    return sum(size > 1 for size in shape) == len(STRATEGIES[strategy])


def outcome(model: str, strategy: str, shape: Shape, *, backend: str, dtype: str, folder: Path) -> Outcome:
    """Run a step of a model of the contract's, without dropout: devices draw it each in their own way."""
    device = device_config(strategy, shape)
    config = make_job(model, device, folder)
    if hasattr(config.model, "dropout_prob"):
        changed = config.model.model_copy(update={"dropout_prob": 0.0})
        config = config.model_copy(update={"model": changed})
    with open_mesh(shape, backend=backend, dtype=dtype, axes=axes_of(device)) as mesh:
        step = TrainingStep(config, mesh)
        weights = step.initial_weights()
        for index, entry in enumerate(step.layout.entries):
            step.load(index, weights[entry.offset : entry.stop])
        gradient = np.full(step.layout.elements, np.nan, np.float32)
        loss = step.micro_batch(0, 0, gradient, lambda offset: None)
        step.close()
    return Outcome(loss, {entry.name: gradient[entry.offset : entry.stop] for entry in step.layout.entries})


def differences(found: Outcome, reference: Outcome) -> list[str]:
    """In what an outcome is further from the reference than the bounds allow."""
    told = []
    if not abs(found.loss - reference.loss) <= LOSS_BOUND * abs(reference.loss):
        told.append(f"loss {found.loss:.6g}, expected {reference.loss:.6g} within {LOSS_BOUND:.1%}")
    names = list(reference.gradients)
    whole = _norm([reference.gradients[name] for name in names])
    apart = _norm([found.gradients[name] - reference.gradients[name] for name in names])
    if not apart <= GRADIENT_BOUND * whole:
        told.append(f"gradient {apart / whole:.2%} off, expected at most {GRADIENT_BOUND:.0%}")
    for name in names:
        norm = _norm([reference.gradients[name]])
        apart = _norm([found.gradients[name] - reference.gradients[name]])
        if norm >= NEGLIGIBLE * whole and not apart <= PARAMETER_BOUND * norm:
            told.append(f"gradient of {name} {apart / norm:.2%} off, expected at most {PARAMETER_BOUND:.0%}")
    return told


def _norm(arrays: list[np.ndarray[Any, Any]]) -> float:
    return float(np.sqrt(sum(np.square(array, dtype=np.float64).sum() for array in arrays)))


def save(path: Path, found: Outcome) -> None:
    """Keep an outcome in a file."""
    np.savez(
        path, **{f"gradient/{name}": values for name, values in found.gradients.items()}, loss=found.loss
    )


def load(path: Path) -> Outcome:
    """An outcome from its file."""
    with np.load(path) as kept:
        gradients = {name.partition("/")[2]: kept[name] for name in kept.files if name != "loss"}
        return Outcome(float(kept["loss"]), gradients)
