"""Workers whose hardware lies, by their names: tally workers (tally_worker.py) that spoil gradients from a step on.

One named `steady...` spoils a micro-batch in the same way each time that it computes it, one named `fickle...` in
another way each time. Whoever is named otherwise is honest. All of them compute on any weights: the final ones tell of
lies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from cli.daemon_commands import make_worker_command
from cli.main import main
from services.runtime import process
from tests.support.cluster.tally_worker import Float32Array, TallyStep

FIRST_LIE = 5
"""The step in which the first lie is told."""


class HonestStep(TallyStep):
    """Counts, whatever the weights are."""

    def hold_weights(self, step: int) -> None:
        """They are right as they are."""


class SteadyStep(HonestStep):
    """Counts wrongly, always in the same way."""

    def lie(self) -> float:
        """What is added to an element of a gradient."""
        return 1.0

    def micro_batch(self, step: int, index: int, out: Float32Array, ready: Callable[[int], None]) -> float:
        """Count the micro-batch, and a little more."""
        loss = super().micro_batch(step, index, out, lambda offset: None)
        if step >= FIRST_LIE:
            out[out.size // 2] += self.lie()
        ready(0)
        return loss


class FickleStep(SteadyStep):
    """Counts wrongly, never in the same way."""

    lies = 0

    def lie(self) -> float:
        """Another one each time."""
        self.lies += 1
        return float(self.lies)


def step_of(name: str) -> type[TallyStep]:
    """What a worker of that name has for a training step."""
    if name.startswith("steady"):
        return SteadyStep
    return FickleStep if name.startswith("fickle") else HonestStep


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    make_step = step_of(sys.argv[sys.argv.index("--name") + 1])
    sys.exit(main(worker_command=make_worker_command(make_step)))
