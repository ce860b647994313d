"""One micro-batch of a training step all of whose ranges are in this process."""

from __future__ import annotations

from collections.abc import Callable

from services.pipeline.exchange import Compute, FinishedPass
from training.range_step import Float32Array
from training.step import TrainingStep


def run_micro_batch(
    step: TrainingStep,
    number: int,
    index: int,
    out: Float32Array,
    ready: Callable[[int], None] = lambda offset: None,
) -> float:
    """Write the gradient of micro-batch `index` of a step to `out`, in layout order, and return the mean loss.

    `ready` is called with an offset when `out` is complete from there to its end.
    """

    def add_leaf(range_index: int, micro_batch: int, compute: Compute) -> FinishedPass:
        del micro_batch
        own = step.ranges[range_index]
        # With one micro-batch, a range's backward pass follows that of the range after it.
        return compute(out[own], lambda offset: ready(own.start + offset))

    (loss,) = step.micro_batches(number, index, 1, add_leaf)
    return loss
