"""A paced worker: `tiermesh worker` whose passes through a range take the same time for each block.

A forward pass takes TIERMESH_BENCH_PAUSE_SECONDS for each block of its range, a backward pass twice as long: what is
computed is computed in that time, and the rest is a pause. It appends a line `STEP RANGE BACKWARD MICRO-BATCH START
STOP` (Unix time) for each pass to the file `NAME-PROCESS` in the folder that TIERMESH_BENCH_RECORDS names.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from cli.daemon_commands import make_worker_command
from cli.main import main
from mesh.exact_transfer import ExactArray
from services.pipeline.exchange import FinishedPass
from services.runtime import process
from training import step
from training.range_step import Float32Array, PassInFlight, RangeStep
from training.step import TrainingStep


class PacedRange(RangeStep):
    """A range whose passes take a given time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        name = sys.argv[sys.argv.index("--name") + 1]
        self._record = Path(os.environ["TIERMESH_BENCH_RECORDS"]) / f"{name}-{os.getpid()}"
        self._pause_seconds = float(os.environ["TIERMESH_BENCH_PAUSE_SECONDS"]) * len(self.blocks)
        self._under_way: dict[str, tuple[int, int]] = {}  # step and micro-batch, by name

    def forward(
        self, step: int, index: int, activation: ExactArray | None = None
    ) -> tuple[PassInFlight, ExactArray | None]:
        """Wait for the weights, then run the forward pass in its time."""
        self.weights.fetch_all()
        start = time.time()
        one, left = super().forward(step, index, activation)
        self._under_way[one.name] = step, index
        self._pause(start, step, index, is_backward=False)
        return one, left

    def backward(
        self,
        one: PassInFlight,
        gradient: ExactArray | None,
        tied: ExactArray | None,
        out: Float32Array,
        ready: Callable[[int], None],
    ) -> FinishedPass:
        """Run the backward pass in its time."""
        start = time.time()
        finished = super().backward(one, gradient, tied, out, ready)
        self._pause(start, *self._under_way.pop(one.name), is_backward=True)
        return finished

    def _pause(self, start: float, step: int, index: int, *, is_backward: bool) -> None:
        # The sleep is the load. Computing for so long would take CPU time from the other stages' processes.
        time.sleep(max(0.0, start + self._pause_seconds * (1 + is_backward) - time.time()))
        with self._record.open("a") as file:
            file.write(
                f"{step} {self.blocks.first} {int(is_backward)} {index} {start:.6f} {time.time():.6f}\n"
            )


def make_step(*arguments: Any, **callbacks: Any) -> TrainingStep:
    """Return a training step of this process, whose passes are paced."""
    with mock.patch.object(step, "RangeStep", PacedRange):
        return TrainingStep(*arguments, **callbacks)


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    sys.exit(main(worker_command=make_worker_command("benchmarks.peers.paced_worker:make_step")))
