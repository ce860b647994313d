"""The tensors of one job in one process: master weights, the staged gradient, and the update rule's state.

Memory: one model copy each for weights, gradient and every array of the rule. A snapshot copies weights and state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plane.huge_page_arrays import allocate_zeros
from plane.update_rules import UpdateRule, build_rule
from services.config.job import JobConfig
from services.tensors.kernels.arithmetic import Float32Array, scale_with_norm
from services.tensors.layout import CHUNK_ELEMENTS, Layout, chunk_range


class MasterTensors:
    """Flat arrays over one layout, [elements] float32, and the chunk-wise operations on them.

    Args:
        config: config of the job.
        layout: layout of the arrays; all are zero at first.
    """

    def __init__(self, config: JobConfig, layout: Layout) -> None:
        self.config = config
        self.layout = layout
        self.weights: Float32Array = allocate_zeros(layout.elements, slot=0)
        self.rule: UpdateRule = build_rule(config.optimizer, layout)
        self._gradient: Float32Array = allocate_zeros(layout.elements, slot=1)

    def restore(self, weights: Float32Array, state: Mapping[str, NDArray[Any]]) -> None:
        """Copy a checkpoint's weights and rule state, which `check_state` has accepted, into these tensors."""
        self.weights[:] = weights
        self.rule.restore(state)

    def store_initial(self, chunk: int, values: Float32Array) -> None:
        """Store a chunk of initial weights, [elements of the chunk] float32."""
        start, stop = chunk_range(self.layout.elements, chunk)
        self.weights[start:stop] = values

    def stage(self, chunk: int, values: Float32Array) -> NDArray[np.float64]:
        """Divide a chunk of the step's sum by the number of micro-batches, and store it.

        Args:
            chunk: index of the chunk.
            values: sum over the micro-batches, [elements of the chunk] float32.

        Returns:
            The sums of squares of its 64 Ki-element blocks, for the global norm.
        """
        start, stop = chunk_range(self.layout.elements, chunk)
        mean = self._gradient[start:stop]
        return scale_with_norm(values, float(np.float32(1.0) / np.float32(self.config.micro_batches)), mean)

    def update(self, chunk: int) -> None:
        """Update the weights of one chunk."""
        self.rule.update(self.weights, self._gradient, *chunk_range(self.layout.elements, chunk))

    def chunk_weights(self, chunk: int) -> Float32Array:
        """Return a view of one chunk's weights, [elements of the chunk] float32."""
        start = chunk * CHUNK_ELEMENTS
        return self.weights[start : start + CHUNK_ELEMENTS]
