"""A worker whose gradients count micro-batches: `tiermesh worker` with another training step.

Let n be the number of a micro-batch within the job, and N the number of all of them. The gradient of micro-batch n is
zero, except that elements n, n + N, n + 2 N, ... are 1, 2, 3, ... The job uses SGD with a learning rate of 1, from zero
weights. Each element of the final weights therefore shows whether its micro-batch was counted once. All numbers are
exact in float32, because the number of micro-batches per step is a power of two. A micro-batch is refused on weights
that don't count every earlier step once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cli.daemon_commands import make_worker_command
from cli.main import main
from services.config.job import JobConfig
from services.runtime import process
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from tests.support.cluster.step_without_mesh import Float32Array, StepWithoutMesh

TENSORS = 5
TENSOR_ELEMENTS = CHUNK_ELEMENTS // 2 + 1
"""Size of each tensor. The layout has three chunks, and some tensors are in two of them."""


@lru_cache(maxsize=1)  # all micro-batches of a step need the same weights
def tallied(steps: int, of_steps: int, micro_batches: int) -> Float32Array:
    """Return the read-only weights after `steps` steps, which count each of their micro-batches once."""
    weights = np.zeros(TENSORS * TENSOR_ELEMENTS, np.float32)
    for number in range(steps * micro_batches):
        own = weights[number :: of_steps * micro_batches]
        own[:] = np.arange(1, len(own) + 1) / -micro_batches
    weights.setflags(write=False)
    return weights


class TallyStep(StepWithoutMesh):
    """Replacement of `training.step.TrainingStep`, with the same interface."""

    vocabulary = 0

    def __init__(
        self,
        config: JobConfig,
        mesh: Any,
        data_dir: Path | None,
        allowed_models: Collection[str],
        **callbacks: Any,
    ) -> None:
        del data_dir, allowed_models, callbacks
        self._steps, self._micro_batches = config.steps, config.micro_batches
        self.evaluation_batches = config.evaluation_batches or 1
        layout = Layout.build(
            (f"t{index}", (TENSOR_ELEMENTS,), False, f"t{index}", False) for index in range(TENSORS)
        )
        super().__init__(layout, mesh)

    def micro_batch(self, step: int, index: int, out: Float32Array, ready: Callable[[int], None]) -> float:
        """Write the counting gradient to `out`; return the number of the micro-batch as its loss."""
        if self._fetch is not None:
            self._fetch(len(self.layout.entries) - 1)
        self.check_weights(step)
        number, numbers = step * self._micro_batches + index, self._steps * self._micro_batches
        out.fill(0.0)
        own = out[number::numbers]
        own[:] = np.arange(1, len(own) + 1)
        ready(0)
        return float(number)

    def check_weights(self, step: int) -> None:
        """Raise ValueError unless the weights count each step before `step` once."""
        if not np.array_equal(self._weights, tallied(step, self._steps, self._micro_batches)):
            raise ValueError(f"the weights for step {step} don't count each earlier step once")


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    sys.exit(main(worker_command=make_worker_command("tests.support.cluster.tally_worker:TallyStep")))
