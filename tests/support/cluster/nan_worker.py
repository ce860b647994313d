"""A faulty worker: `tiermesh worker` that reads one gradient off the mesh with a NaN."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from cli.daemon_commands import make_worker_command
from cli.main import main
from services.runtime import process
from training.autograd.variable import Parameter, Tensor
from training.step import TrainingStep

Float32Array = npt.NDArray[np.float32]

FAULTY_STEP, FAULTY_MICRO_BATCH, FAULTY_PARAMETER = 2, 1, "weight"
"""Place of the fault on every worker. Steps and micro-batches count from 0."""


class FaultyStep(TrainingStep):
    """Training step that reads one gradient wrongly off the mesh."""

    _current = (0, 0)

    def micro_batch(self, step: int, index: int, out: Float32Array, ready: Callable[[int], None]) -> float:
        """Compute the micro-batch, and remember its step and index for `read_gradient`."""
        self._current = step, index
        return super().micro_batch(step, index, out, ready)

    def read_gradient(self, parameter: Parameter, gradient: Tensor) -> Float32Array:
        """Return the gradient, with a NaN in its middle for the faulty micro-batch."""
        values = super().read_gradient(parameter, gradient)
        if self._current == (FAULTY_STEP, FAULTY_MICRO_BATCH) and parameter.name.endswith(FAULTY_PARAMETER):
            values = values.copy()
            values[values.size // 2] = np.nan
        return values


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    sys.exit(main(worker_command=make_worker_command(FaultyStep)))
