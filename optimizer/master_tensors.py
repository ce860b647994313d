"""The tensors of the job that an optimizer holds: master weights, the staged gradient, the update rule's state.

Memory: weights, staged gradient and the rule's state are one model copy each; a snapshot copies weights and state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimizer.huge_page_arrays import zeros
from optimizer.schedules import learning_rate
from optimizer.update_rules import UpdateRule, build_rule, clip_coefficient
from services.config.job import JobConfig
from services.tensors.kernels.arithmetic import Float32Array, norm, norm_squared_blocks, scale
from services.tensors.layout import CHUNK_ELEMENTS, Layout, chunk_range


class MasterTensors:
    """Flat float32 arrays over one layout, and what is done with them chunk by chunk."""

    def __init__(self, config: JobConfig, layout: Layout) -> None:
        self.config = config
        self.layout = layout
        self.weights: Float32Array = zeros(layout.elements, place=0)
        self.rule: UpdateRule = build_rule(config.optimizer, layout)
        self._gradient: Float32Array = zeros(layout.elements, place=1)
        self._block_sums: dict[int, NDArray[np.float64]] = {}

    def restore(self, weights: Float32Array, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a checkpoint's weights and rule state (Refused: not of this job's optimizer)."""
        self.weights[:] = weights
        self.rule.restore(state)

    def store_initial(self, chunk: int, values: Float32Array) -> None:
        """Take a chunk of initial weights."""
        start, stop = chunk_range(self.layout.elements, chunk)
        self.weights[start:stop] = values

    def stage(self, chunk: int, values: Float32Array) -> None:
        """Take a chunk of the step's sum, as mean over its micro-batches, and measure it on the way."""
        start, stop = chunk_range(self.layout.elements, chunk)
        mean = self._gradient[start:stop]
        scale(values, float(np.float32(1.0) / np.float32(self.config.micro_batches)), mean)
        self._block_sums[chunk] = norm_squared_blocks(mean)

    def measure(self, step: int) -> tuple[float, bool, float]:
        """Global norm of the staged mean gradient, whether it is finite, and the learning rate of this update."""
        sums = [self._block_sums[chunk] for chunk in range(self.layout.chunks)]
        self._block_sums.clear()
        return measured(self.config, sums, step)

    def take_block_sums(self, chunk: int) -> NDArray[np.float64]:
        """The block sums of a staged chunk, for whoever measures; `measure` has them no more."""
        return self._block_sums.pop(chunk)

    def begin_update(self, grad_norm: float, rate: float) -> None:
        """Fix the scalars of the next update."""
        self.rule.begin(rate, clip_coefficient(grad_norm, self.config.clip_grad_norm))

    def update(self, chunk: int) -> None:
        """Update the weights of one chunk."""
        self.rule.update(self.weights, self._gradient, *chunk_range(self.layout.elements, chunk))

    def chunk_weights(self, chunk: int) -> Float32Array:
        """The weights of one chunk, a view."""
        start = chunk * CHUNK_ELEMENTS
        return self.weights[start : start + CHUNK_ELEMENTS]

    def copy(self) -> tuple[Float32Array, dict[str, NDArray[Any]]]:
        """Weights and rule state as they are now."""
        return self.weights.copy(), {name: array.copy() for name, array in self.rule.state.items()}


def measured(
    config: JobConfig, chunk_sums: Sequence[NDArray[np.float64]], step: int
) -> tuple[float, bool, float]:
    """What `MasterTensors.measure` says, from the block sums of all chunks in the order of the layout."""
    sums = np.concatenate(chunk_sums)
    return (
        norm(sums),
        bool(np.isfinite(sums).all()),
        learning_rate(config.schedule, config.optimizer.lr, step),
    )
