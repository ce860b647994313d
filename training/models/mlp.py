"""Multilayer perceptron: linear layers with an activation between them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from services.config.models import MLPConfig
from training import ops
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Variable
from training.models.model import Array
from training.models.regression import compute_regression_loss
from training.modules.linear import (
    Linear,
)


class MLP:
    """Linear layers, with an activation after each except the last, and the mean squared error.

    Tensor-parallel devices share out the outputs of the first layer and the inputs of the second, and so on. A last
    layer without a partner is whole on each device.

    Args:
        config: config of the model.
    """

    def __init__(self, config: MLPConfig) -> None:
        self._config = config
        widths = [config.input_features, *config.hidden_features, config.output_features]
        last = len(widths) - 2
        self._layers = [
            Linear(
                f"layers.{index}",
                inputs,
                outputs,
                bias=config.bias,
                # Keeps the variance from layer to layer: an activation passes about half of it.
                deviation=float(((1 if index == last else 2) / inputs) ** 0.5),
                export_prefix=f"layers.{index}.",
                split=_split(index, last),
                padded=True,
            )
            for index, (inputs, outputs) in enumerate(pairwise(widths))
        ]

    def parameters(self) -> Iterator[Parameter]:
        """Yield the parameters in order of first use."""
        for layer in self._layers:
            yield from layer.parameters()

    def loss(self, tape: Tape, inputs: Array, targets: Array) -> Variable:
        """Return the squared error of each sample, see `compute_regression_loss`."""
        return compute_regression_loss(tape, lambda x: self._predict(tape, x), inputs, targets)

    def hugging_face_config(self) -> dict[str, Any]:
        """Return the sizes; no other program has a format for this model."""
        return self._config.model_dump(mode="json")

    def constant_exports(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return no tensors."""
        return {}

    def _predict(self, tape: Tape, x: Variable) -> Variable:
        for layer in self._layers[:-1]:
            x = self._activate(tape, layer(tape, x))
        return self._layers[-1](tape, x)

    def _activate(self, tape: Tape, x: Variable) -> Variable:
        match self._config.activation:
            case "relu":
                return ops.relu(tape, x)
            case "silu":
                return ops.silu(tape, x)
            case "gelu":
                return ops.gelu(tape, x, ops.Gelu.EXACT)
            case "gelu_tanh":
                return ops.gelu(tape, x, ops.Gelu.TANH)


def _split(index: int, last: int) -> Literal["outputs", "inputs"] | None:
    if index % 2:
        return "inputs"
    return None if index == last else "outputs"
