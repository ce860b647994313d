"""A worker whose chips are paced: `tiermesh worker` with a job's layout and passes that are pauses.

A forward pass takes TIERMESH_BENCH_FORWARD_SECONDS, a backward pass twice as long. Matrices take their part of it by
their elements, tables of embeddings none. The forward pass waits for each parameter where it is used, and the backward
pass completes gradients in the reverse order. So only the host's work is real, and takes no time of the chips.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from cli.daemon_commands import make_worker_command
from cli.main import main
from services.config.job import JobConfig
from services.pipeline.exchange import PassExchange
from services.runtime import process
from tests.support.cluster.equal_speed import claim_equal_speed
from tests.support.cluster.step_without_mesh import Float32Array, StepWithoutMesh
from training.job_data import JobData
from training.models.build import build_model
from training.models.initialise import build_layout


class PacedStep(StepWithoutMesh):
    """Replacement of `training.step.TrainingStep` whose passes take a given time."""

    def __init__(
        self,
        config: JobConfig,
        mesh: Any,
        data_dir: Path | None,
        allowed_models: Collection[str],
        **callbacks: Any,
    ) -> None:
        del callbacks
        data = JobData.open(config, data_dir)
        self.vocabulary = data.vocabulary
        self.tokens_per_micro_batch = data.rows_per_micro_batch
        self.evaluation_batches = data.evaluation_batches
        # The model only names parameters: they get no values.
        layout = build_layout(
            build_model(config.model, self.vocabulary, mesh, allowed_models), decay_all=True
        )
        super().__init__(layout, mesh)
        forward = float(os.environ["TIERMESH_BENCH_FORWARD_SECONDS"])
        work = [
            0 if "wte" in each.name or "wpe" in each.name or len(each.shape) < 2 else each.size
            for each in self.layout.entries
        ]
        self._forward_seconds = [forward * each / sum(work) for each in work]
        self._evaluation_seconds = forward * config.validation_batch_size / config.batch_size

    def micro_batch(self, step: int, index: int, out: Float32Array, ready: Callable[[int], None]) -> float:
        """Pause for the passes, as the weights arrive and the gradients get complete."""
        del step
        fetch, self._fetch = self._fetch, None
        moment = time.perf_counter()
        for entry, seconds in enumerate(self._forward_seconds):
            if fetch is not None:
                fetch(entry)
                moment = max(moment, time.perf_counter())
            moment = _pause(moment + seconds)
        for entry in reversed(range(len(self.layout.entries))):
            placed = self.layout.entries[entry]
            self._write_gradient(out[placed.offset : placed.stop], index)
            moment = _pause(moment + 2 * self._forward_seconds[entry])
            ready(placed.offset)
        return 0.0

    def _write_gradient(self, place: Float32Array, index: int) -> None:
        """Write the gradient of one parameter."""
        place[:] = 1e-3 * (index + 1)

    def evaluate(self, index: int, exchange: PassExchange) -> tuple[float, int]:
        """Pause for a forward pass, and return a loss of 0."""
        del index, exchange
        time.sleep(self._evaluation_seconds)
        return 0.0, 1


def _pause(until: float) -> float:
    time.sleep(max(0.0, until - time.perf_counter()))
    return until


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    claim_equal_speed()
    sys.exit(main(worker_command=make_worker_command("benchmarks.peers.paced_step_worker:PacedStep")))
