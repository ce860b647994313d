"""Workers of a pipeline with faulty hardware: those named `faulty` spoil each gradient for the stage before theirs.

The gradients of their own parameters are right. So those of every earlier stage are wrong, through no fault of its own.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import count
from typing import Any
from unittest import mock

from cli.main import main
from services.runtime import process
from training.range_step import FinishedPass, RangeStep

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


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    if sys.argv[sys.argv.index("--name") + 1] == "faulty":
        mock.patch.object(RangeStep, "backward", spoil_backward).start()
    sys.exit(main())
