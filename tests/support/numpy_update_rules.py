"""What the update rules of plane/update_rules.py compute, in numpy: the specification of the C kernels, bit by bit."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from services.config.job_parts import OptimizerConfig
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout


class NumpyRule:
    """AdamW or SGD over a whole layout; arguments and arrays as in `plane.update_rules`.

    Attributes:
        state: arrays of the rule by torch's names, [elements] float32 each.
    """

    def __init__(self, config: OptimizerConfig, layout: Layout) -> None:
        self._config = config
        self._decays = np.concatenate([np.full(each.size, each.decays) for each in layout.entries])
        self._applied = 0
        names = ["momentum_buffer"] if config.momentum else []
        if config.type == "adamw":
            names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if config.amsgrad else [])]
        self.state = {name: np.zeros(layout.elements, np.float32) for name in names}

    def update(
        self, weights: Float32Array, gradient: Float32Array, part: slice, learning_rate: float, clip: float
    ) -> None:
        """Make the next update, of the range `part` alone."""
        self._applied += 1
        state = {name: array[part] for name, array in self.state.items()}
        with np.errstate(all="ignore"):
            clipped = gradient[part] * np.float32(clip)
            change = self._adamw if self._config.type == "adamw" else self._sgd
            weights[part] = change(weights[part], clipped, self._decays[part], state, learning_rate)

    def _adamw(
        self,
        weights: Float32Array,
        gradient: Float32Array,
        decays: NDArray[np.bool_],
        state: dict[str, Float32Array],
        learning_rate: float,
    ) -> Float32Array:
        config = self._config
        correction1 = 1 - config.beta1**self._applied
        correction2 = math.sqrt(1 - config.beta2**self._applied)
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean += (gradient - mean) * np.float32(1 - config.beta1)
        square[:] = square * np.float32(config.beta2) + gradient * gradient * np.float32(1 - config.beta2)
        if config.amsgrad:
            square = np.maximum(state["max_exp_avg_sq"], square, out=state["max_exp_avg_sq"])
        root = np.sqrt(square) + np.float32(config.epsilon * correction2)
        shrunk = weights * np.float32(1 - learning_rate * config.weight_decay)
        kept: Float32Array = np.where(decays, shrunk, weights)
        return kept - mean / root * np.float32(learning_rate / correction1 * correction2)

    def _sgd(
        self,
        weights: Float32Array,
        gradient: Float32Array,
        decays: NDArray[np.bool_],
        state: dict[str, Float32Array],
        learning_rate: float,
    ) -> Float32Array:
        config = self._config
        if config.weight_decay:
            gradient = np.where(decays, gradient + weights * np.float32(config.weight_decay), gradient)
        if config.momentum:
            enter = np.float32(1.0 if self._applied == 1 else 1 - config.dampening)
            velocity, momentum = state["momentum_buffer"], np.float32(config.momentum)
            velocity[:] = velocity * momentum + gradient * enter
            gradient = gradient + velocity * momentum if config.nesterov else velocity
        return weights - gradient * np.float32(learning_rate)
