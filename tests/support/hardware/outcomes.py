"""Runs one training step on a device, and compares the outcomes of two devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mesh.device import open_mesh
from services.config.models import CustomConfig
from tests.support.contract.steps import MODELS, STRATEGIES, device_config, make_job
from tests.support.micro_batch import run_micro_batch
from training.parameter_placement import choose_axes
from training.step import TrainingStep

Shape = tuple[int, int]

TRAINED = [name for name, config in MODELS.items() if not isinstance(config, CustomConfig)]
"""Models of the contract, except the user's own model."""

# About three times the effect of bfloat16 rounding on the emulator, which test_comparison.py measures: losses 0.02 %,
# gradients 1.5 %, single parameters 3 %. Devices also round within an op and approximate functions.
LOSS_BOUND = 0.002
"""Largest relative difference of the losses."""
GRADIENT_BOUND = 0.05
"""Largest norm of the difference of the gradients, relative to the norm of the reference."""
PARAMETER_BOUND = 0.1
"""Largest relative difference of a single parameter's gradient. Negligible gradients are not compared."""
NEGLIGIBLE = 1e-3
"""Norm of a parameter's gradient, relative to the whole gradient, below which it is negligible."""


@dataclass(frozen=True)
class Outcome:
    """Mean loss, and gradient by parameter, of one micro-batch with the initial weights."""

    loss: float
    gradients: dict[str, np.ndarray[Any, Any]]


def fits(strategy: str, shape: Shape) -> bool:
    """Return whether a strategy uses each axis with several devices."""
    return sum(size > 1 for size in shape) == len(STRATEGIES[strategy])


def run_step(model: str, strategy: str, shape: Shape, *, backend: str, dtype: str, folder: Path) -> Outcome:
    """Run a step of one of the contract's models, without dropout, whose masks differ between devices."""
    device = device_config(strategy, shape)
    config = make_job(model, device, folder)
    if hasattr(config.model, "dropout_prob"):
        changed = config.model.model_copy(update={"dropout_prob": 0.0})
        config = config.model_copy(update={"model": changed})
    with open_mesh(shape, backend=backend, dtype=dtype, axes=choose_axes(device)) as mesh:
        step = TrainingStep(config, mesh)
        weights = step.initial_weights()
        for index, entry in enumerate(step.layout.entries):
            step.load(index, weights[entry.offset : entry.stop])
        gradient = np.full(step.layout.elements, np.nan, np.float32)
        loss = run_micro_batch(step, 0, 0, gradient)
        step.close()
    return Outcome(loss, {entry.name: gradient[entry.offset : entry.stop] for entry in step.layout.entries})


def find_differences(
    found: Outcome,
    reference: Outcome,
    *,
    loss_bound: float = LOSS_BOUND,
    gradient_bound: float = GRADIENT_BOUND,
    parameter_bound: float = PARAMETER_BOUND,
) -> list[str]:
    """Return one text per value that differs from the reference by more than its bound."""
    messages = []
    if not abs(found.loss - reference.loss) <= loss_bound * abs(reference.loss):
        messages.append(f"loss {found.loss:.6g}, expected {reference.loss:.6g} within {loss_bound:.1%}")
    names = list(reference.gradients)
    whole = _norm([reference.gradients[name] for name in names])
    apart = _norm([found.gradients[name] - reference.gradients[name] for name in names])
    if not apart <= gradient_bound * whole:
        messages.append(f"gradient {apart / whole:.2%} off, expected at most {gradient_bound:.0%}")
    for name in names:
        norm = _norm([reference.gradients[name]])
        apart = _norm([found.gradients[name] - reference.gradients[name]])
        if norm >= NEGLIGIBLE * whole and not apart <= parameter_bound * norm:
            messages.append(
                f"gradient of {name} {apart / norm:.2%} off, expected at most {parameter_bound:.0%}"
            )
    return messages


def _norm(arrays: list[np.ndarray[Any, Any]]) -> float:
    return float(np.sqrt(sum(np.square(array, dtype=np.float64).sum() for array in arrays)))


def save(path: Path, found: Outcome) -> None:
    """Write an outcome to a file."""
    np.savez(
        path, **{f"gradient/{name}": values for name, values in found.gradients.items()}, loss=found.loss
    )


def load(path: Path) -> Outcome:
    """Read an outcome from its file."""
    with np.load(path) as kept:
        gradients = {name.partition("/")[2]: kept[name] for name in kept.files if name != "loss"}
        return Outcome(float(kept["loss"]), gradients)
