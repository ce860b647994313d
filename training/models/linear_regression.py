"""Linear regression: the smallest model that uses every part of the system."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from services.config.models import LinearRegressionConfig
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Variable
from training.models.model import Array
from training.models.regression import compute_regression_loss
from training.modules.linear import (
    Linear,
)


class LinearRegression:
    """One linear layer and the mean squared error.

    Args:
        config: config of the model.
    """

    def __init__(self, config: LinearRegressionConfig) -> None:
        self._config = config
        # With a deviation of 1 / sqrt(inputs), inputs of variance 1 give outputs of variance 1.
        deviation = float(config.num_features**-0.5)
        self._layer = Linear(
            "linear",
            config.num_features,
            config.num_targets,
            bias=config.bias,
            deviation=deviation,
            export_prefix="",
        )

    def parameters(self) -> Iterator[Parameter]:
        """Yield the weight, then the bias."""
        return self._layer.parameters()

    def loss(self, tape: Tape, inputs: Array, targets: Array) -> Variable:
        """Return the squared error of each sample, see `compute_regression_loss`."""
        return compute_regression_loss(tape, lambda x: self._layer(tape, x), inputs, targets)

    def hugging_face_config(self) -> dict[str, Any]:
        """Return the sizes; no other program has a format for this model."""
        return self._config.model_dump(mode="json")

    def constant_exports(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return no tensors."""
        return {}
