"""The comparison in the hardware tests detects wrong results and tolerates rounding to bfloat16."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.support.hardware.outcomes import (
    GRADIENT_BOUND,
    LOSS_BOUND,
    PARAMETER_BOUND,
    TRAINED,
    Outcome,
    Shape,
    find_differences,
    load,
    run_step,
    save,
)

CELLS: list[tuple[str, str, Shape]] = [
    *((model, "single", (1, 1)) for model in TRAINED),
    ("gpt2", "ddp", (1, 8)),
    ("gpt2", "tp", (1, 8)),
    ("llama", "fsdp_tp", (2, 4)),
]


@pytest.mark.parametrize(("model", "strategy", "shape"), CELLS)
def test_bfloat16_rounding_stays_below_a_third_of_the_bounds(
    model: str, strategy: str, shape: Shape, tmp_path: Path
) -> None:
    exact, rounded = (
        run_step(model, strategy, shape, backend="emulator", dtype=dtype, folder=tmp_path)
        for dtype in ("float32", "bfloat16")
    )
    messages = find_differences(
        rounded,
        exact,
        loss_bound=LOSS_BOUND / 3,
        gradient_bound=GRADIENT_BOUND / 3,
        parameter_bound=PARAMETER_BOUND / 3,
    )
    assert messages == []


@pytest.fixture
def gpt2(tmp_path: Path) -> Outcome:
    return run_step("gpt2", "ddp", (1, 2), backend="emulator", dtype="bfloat16", folder=tmp_path)


def _scale_gradients(found: Outcome, name: str, factor: float) -> Outcome:
    gradients = {
        each: values * factor if name in each else values for each, values in found.gradients.items()
    }
    return dataclasses.replace(found, gradients=gradients)


def test_wrong_values_are_named(gpt2: Outcome) -> None:
    assert find_differences(gpt2, gpt2) == []
    (loss,) = find_differences(dataclasses.replace(gpt2, loss=gpt2.loss * 1.01), gpt2)
    assert loss.startswith("loss ")
    # A forgotten all-reduce: each device's half instead of the sum.
    halved = find_differences(_scale_gradients(gpt2, "", 0.5), gpt2)
    assert halved[0] == "gradient 50.00% off, expected at most 5%"
    assert len(halved) > 10
    largest = max(gpt2.gradients, key=lambda name: float(np.linalg.norm(gpt2.gradients[name])))
    assert any(
        f"gradient of {largest} 200.00% off" in each
        for each in find_differences(_scale_gradients(gpt2, largest, -1), gpt2)
    )


def test_zeros_and_nan_are_wrong(gpt2: Outcome) -> None:
    zeros = Outcome(0.0, {name: np.zeros_like(values) for name, values in gpt2.gradients.items()})
    assert len(find_differences(zeros, gpt2)) > 2
    assert len(find_differences(_scale_gradients(gpt2, "", float("nan")), gpt2)) > 2
    assert find_differences(dataclasses.replace(gpt2, loss=float("nan")), gpt2) != []


def test_an_outcome_is_saved_and_loaded(gpt2: Outcome, tmp_path: Path) -> None:
    save(tmp_path / "kept.npz", gpt2)
    kept = load(tmp_path / "kept.npz")
    assert kept.loss == gpt2.loss
    assert list(kept.gradients) == list(gpt2.gradients)
    assert find_differences(kept, gpt2) == []
