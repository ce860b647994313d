"""Workers of a pipeline with faulty hardware: those named `faulty` spoil each gradient for the stage before theirs.

The gradients of their own parameters are right. So those of every earlier stage are wrong, through no fault of its own.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import count
from typing import Any
from unittest import mock

from cli.daemon_commands import make_worker_command
from cli.main import main
from services.pipeline.exchange import FinishedPass
from services.runtime import process
from training.range_step import RangeStep
from training.step import TrainingStep

compute_backward = RangeStep.backward
lies = count(1)


def spoil_backward(self: RangeStep, *arguments: Any) -> FinishedPass:
    """Run the backward pass, and spoil what it sends in another way each time."""
    finished = compute_backward(self, *arguments)
    if finished.gradient is None:
        return finished
    gradient = finished.gradient.copy()
    gradient.flat[gradient.size // 2] += next(lies)
    return replace(finished, gradient=gradient)


def make_step(*arguments: Any, **callbacks: Any) -> TrainingStep:
    """Return a training step of this process, which has the fault."""
    if sys.argv[sys.argv.index("--name") + 1] == "faulty":
        mock.patch.object(RangeStep, "backward", spoil_backward).start()
    return TrainingStep(*arguments, **callbacks)


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    sys.exit(main(worker_command=make_worker_command("tests.support.cluster.faulty_stage:make_step")))
