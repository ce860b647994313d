"""The multilayer perceptron compared with a plain float64 one, on one device and with every strategy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mesh.axes import Axes
from mesh.device import Mesh
from mesh.transfer import download
from services.config.job import JobConfig
from services.config.models import MLPConfig
from tests.support.micro_batch import run_micro_batch
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Tensor
from training.models.build import (
    build_model,
    load_parameter,
)
from training.parameter_placement import from_mesh
from training.step import TrainingStep

SAMPLES = 16
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def load_config(hidden: tuple[int, ...], activation: Any = "relu", bias: bool = True) -> MLPConfig:
    return MLPConfig(
        input_features=12, hidden_features=hidden, output_features=5, activation=activation, bias=bias
    )


def compute_reference(values: dict[str, Any], layers: int, activation: str, inputs: Any, targets: Any) -> Any:
    x = inputs.astype(np.float64)
    for index in range(layers):
        x = x @ values[f"layers.{index}.weight"] + values.get(f"layers.{index}.bias", 0)
        if index < layers - 1:
            x = ACTIVATIONS[activation](x)
    return ((x - targets) ** 2).mean(axis=1)


def run(mesh: Mesh, model_config: MLPConfig) -> tuple[dict[str, Any], dict[str, Any], Any, Any]:
    """Return the parameters' values, losses and gradients, and the batch."""
    random = np.random.default_rng(5)
    model = build_model(model_config, 0, mesh)
    values = {}
    for parameter in model.parameters():
        value = (0.5 * random.standard_normal(parameter.shape)).astype(np.float32)
        load_parameter(mesh, parameter, value.reshape(-1))
        values[parameter.name] = value.astype(np.float64)
    inputs = random.standard_normal((SAMPLES, 12)).astype(np.float32)
    targets = random.standard_normal((SAMPLES, 5)).astype(np.float32)
    tape = Tape(mesh)
    loss = model.loss(tape, inputs, targets)
    found: dict[str, Any] = {"loss": download(mesh, loss.value, loss.placements).reshape(-1)}

    def take(parameter: Parameter, gradient: Tensor) -> None:
        whole = from_mesh(parameter, download(mesh, gradient, parameter.placements), mesh)
        found[parameter.name] = whole.reshape(parameter.shape).copy()

    tape.backward(loss, 1 / SAMPLES, take)
    assert found.keys() == {"loss", *values}
    return values, found, inputs, targets


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("hidden", [(), (32,), (32, 64)])
@pytest.mark.parametrize("bias", [True, False])
def test_losses_and_gradients(mesh: Mesh, activation: str, hidden: tuple[int, ...], bias: bool):
    values, found, inputs, targets = run(mesh, load_config(hidden, activation, bias))
    layers = len(hidden) + 1
    assert len(values) == layers * (1 + bias)
    np.testing.assert_allclose(
        found["loss"], compute_reference(values, layers, activation, inputs, targets), rtol=1e-5
    )
    random = np.random.default_rng(6)
    step = 1e-6
    for name, value in values.items():
        direction = random.standard_normal(value.shape)
        above, below = (
            compute_reference(
                {**values, name: value + sign * step * direction}, layers, activation, inputs, targets
            )
            for sign in (1, -1)
        )
        slope = (above.mean() - below.mean()) / (2 * step)
        assert float((found[name] * direction).sum()) == pytest.approx(slope, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("hidden", [(64,), (50, 96), (64, 96, 70)])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((1, 8), Axes(data=1)),
        ((1, 2), Axes(tensor=1)),
        ((4, 1), Axes(data=0, shard_parameters=True)),
        ((2, 2), Axes(data=0, tensor=1)),
        ((2, 2), Axes(data=0, tensor=1, shard_parameters=True)),
    ],
    ids=str,
)
def test_every_strategy_gives_what_one_device_gives(
    open_emulator: Callable[..., Mesh], hidden: tuple[int, ...], shape: tuple[int, int], axes: Axes
):
    expected = run(open_emulator(), load_config(hidden, "silu"))[1]
    found = run(open_emulator(shape, axes=axes), load_config(hidden, "silu"))[1]
    for name, values in expected.items():
        assert np.abs(found[name] - values).max() <= 1e-5 * np.abs(values).max(), name


def test_it_learns_a_linear_function(mesh: Mesh):
    job = JobConfig(
        model=MLPConfig(input_features=8, hidden_features=(32,), output_features=2, training_samples=1000),
        batch_size=64,
        validation_batch_size=64,
    )
    step = TrainingStep(job, mesh)
    weights = step.initial_weights()
    losses = []
    for at in range(60):
        for index, entry in enumerate(step.layout.entries):
            step.load(index, weights[entry.offset : entry.stop])
        gradient = np.empty_like(weights)
        losses.append(run_micro_batch(step, at, 0, gradient))
        weights -= 0.05 * gradient
    assert losses[-1] < 0.2 * losses[0]
