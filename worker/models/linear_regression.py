"""Linear regression: the smallest model that goes the whole way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from services.config import LinearRegressionConfig
from worker import ops
from worker.autograd import Parameter, Tape, Variable
from worker.models.model import Array, batched
from worker.modules import Linear


class LinearRegression:
    """One linear layer and the mean squared error.

    Args:
        config: of the model.
        mesh: to run on.
    """

    def __init__(self, config: LinearRegressionConfig, mesh: Mesh) -> None:
        self._config = config
        self._dtype = mesh.dtype
        # A deviation of 1 / sqrt(inputs) makes outputs of inputs of variance 1 start with variance 1.
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
        """Weight, then bias."""
        return self._layer.parameters()

    def loss(self, tape: Tape, inputs: Array, targets: Array) -> Variable:
        """The squared error of each sample, its mean over the targets.

        Args:
            tape: of this pass.
            inputs: float32 [samples, features].
            targets: float32 [samples, targets].

        Returns:
            float32 [1, 1, samples of one device, 1].
        """
        tt = tape.mesh.tt
        x = batched(tape, inputs, dtype=self._dtype, layout=tt.TILE_LAYOUT, dim=2, prepare=_four_dimensions)
        y = batched(tape, targets, dtype=tt.float32, layout=tt.TILE_LAYOUT, dim=2, prepare=_four_dimensions)
        return ops.squared_error(tape, self._layer(tape, x), y)

    def hugging_face_config(self) -> dict[str, Any]:
        """The sizes; no other program has a format for this."""
        return self._config.model_dump(mode="json")

    def constant_exports(self) -> dict[str, npt.NDArray[np.float32]]:
        """None."""
        return {}


def _four_dimensions(array: Array) -> Array:
    return array[None, None]
