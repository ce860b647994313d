"""Workers of a pipeline of which the one named `liar` sends its neighbours arrays of another shape than the job's."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any
from unittest import mock

from cli.daemon_commands import make_worker_command
from cli.main import main
from services.pipeline.exchange import FinishedPass
from services.runtime import process
from training.range_step import RangeStep
from training.step import TrainingStep

run_forward, run_backward = RangeStep.forward, RangeStep.backward


def forward(self: RangeStep, *arguments: Any) -> Any:
    """Run the forward pass, and send half of the activation."""
    one, activation = run_forward(self, *arguments)
    return one, None if activation is None else activation[:, :, ::2].copy()


def backward(self: RangeStep, *arguments: Any) -> FinishedPass:
    """Run the backward pass, and send half of the gradient."""
    finished = run_backward(self, *arguments)
    if finished.gradient is None:
        return finished
    return replace(finished, gradient=finished.gradient[:, :, ::2].copy())


def make_step(*arguments: Any, **callbacks: Any) -> TrainingStep:
    """Return a training step of this process, which has the fault."""
    if sys.argv[sys.argv.index("--name") + 1] == "liar":
        mock.patch.object(RangeStep, "forward", forward).start()
        mock.patch.object(RangeStep, "backward", backward).start()
    return TrainingStep(*arguments, **callbacks)


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    sys.exit(main(worker_command=make_worker_command("tests.support.cluster.lying_stage:make_step")))
