"""A faulty worker: `tiermesh worker` that reads one gradient off the mesh with a NaN."""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from cli.daemon_commands import make_worker_command
from cli.main import main
from services.runtime import process
from training.autograd.variable import Parameter, Tensor
from training.range_step import RangeStep
from training.step import TrainingStep
from training.weights import Weights

Float32Array = npt.NDArray[np.float32]

FAULTY_STEP, FAULTY_MICRO_BATCH, FAULTY_PARAMETER = 2, 1, "weight"
"""Place of the fault on every worker. Steps and micro-batches count from 0."""


run_forward, read_gradient = RangeStep.forward, Weights.read_gradient
newest: list[tuple[int, int]] = []


def forward(self: RangeStep, step: int, index: int, *received: Any) -> Any:
    """Run the forward pass, and remember its step and micro-batch for `read_wrongly`."""
    newest[:] = [(step, index)]
    return run_forward(self, step, index, *received)


def read_wrongly(self: Weights, parameter: Parameter, gradient: Tensor) -> Float32Array:
    """Return the gradient, with a NaN in its middle for the faulty micro-batch."""
    values = read_gradient(self, parameter, gradient)
    if newest == [(FAULTY_STEP, FAULTY_MICRO_BATCH)] and parameter.name.endswith(FAULTY_PARAMETER):
        values = values.copy()
        values[values.size // 2] = np.nan
    return values


def make_step(*arguments: Any, **callbacks: Any) -> TrainingStep:
    """Return a training step of this process, which has the fault."""
    mock.patch.object(RangeStep, "forward", forward).start()
    mock.patch.object(Weights, "read_gradient", read_wrongly).start()
    return TrainingStep(*arguments, **callbacks)


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    sys.exit(main(worker_command=make_worker_command("tests.support.cluster.nan_worker:make_step")))
