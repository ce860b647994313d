"""Workers with faulty hardware: tally workers (tally_worker.py) that corrupt gradients from a certain step on.

The worker's name selects the fault. `steady...` corrupts a micro-batch in the same way at each computation, and
`fickle...` in another way each time. Workers of other names are honest. All of them compute on any weights, so that the
final weights show each lie. They claim the same speed, so that each gets work in each step, also after a pause.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from cli.daemon_commands import make_worker_command
from cli.main import main
from services.runtime import process
from tests.support.cluster.equal_speed import claim_equal_speed
from tests.support.cluster.step_without_mesh import Float32Array
from tests.support.cluster.tally_worker import TallyStep

FIRST_LIE = 5
"""First step with a corrupted gradient."""

CLAIMED_SECONDS = 0.01
"""Time that a micro-batch takes, as the workers report it."""


class HonestStep(TallyStep):
    """Step that computes correct gradients on any weights."""

    def check_weights(self, step: int) -> None:
        """Accept any weights."""


class SteadyStep(HonestStep):
    """Step that corrupts gradients, always in the same way."""

    def lie(self) -> float:
        """Return the error to add to one element of a gradient."""
        return 1.0

    def micro_batch(self, step: int, index: int, out: Float32Array, ready: Callable[[int], None]) -> float:
        """Compute the gradient, and corrupt one element from `FIRST_LIE` on."""
        loss = super().micro_batch(step, index, out, lambda offset: None)
        if step >= FIRST_LIE:
            out[out.size // 2] += self.lie()
        ready(0)
        return loss


class FickleStep(SteadyStep):
    """Step that corrupts gradients in another way each time."""

    lies = 0

    def lie(self) -> float:
        """Return another error at each call."""
        self.lies += 1
        return float(self.lies)


def step_of(name: str) -> type[TallyStep]:
    """Return the training step for a worker of this name."""
    if name.startswith("steady"):
        return SteadyStep
    return FickleStep if name.startswith("fickle") else HonestStep


def make_step(*arguments: Any, **callbacks: Any) -> TallyStep:
    """Return the training step for the worker of this process."""
    return step_of(sys.argv[sys.argv.index("--name") + 1])(*arguments, **callbacks)


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    claim_equal_speed(CLAIMED_SECONDS / TallyStep.tokens_per_micro_batch)
    sys.exit(main(worker_command=make_worker_command("tests.support.cluster.lying_worker:make_step")))
