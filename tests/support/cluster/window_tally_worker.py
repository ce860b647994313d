"""A worker whose gradients count training windows: `tiermesh worker` with another training step.

The corpus has id n at position n, over all its files, so a window is known by its first id. The gradient of a
micro-batch is the number of times that each id is the first of its windows. The job uses SGD with a learning rate of 1,
from zero weights, so each element of the final weights shows how often a window was drawn. All numbers are exact in
float32, because the number of micro-batches per step is a power of two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from cli.daemon_commands import make_worker_command
from cli.main import main
from services.config.job import JobConfig
from services.config.models import RegressionConfig
from services.runtime import process
from tests.support.cluster.step_without_mesh import Float32Array
from tests.support.cluster.tally_worker import TallyStep
from training.data.load import load_corpus
from training.data.tokens import TokenDataset


class WindowTallyStep(TallyStep):
    """Replacement of `training.step.TrainingStep`, with the same interface and the same data."""

    def __init__(
        self,
        config: JobConfig,
        mesh: Any,
        data_dir: Path | None,
        allowed_models: Collection[str],
        **callbacks: Any,
    ) -> None:
        super().__init__(config, mesh, data_dir, allowed_models, **callbacks)
        assert config.data is not None and not isinstance(config.model, RegressionConfig)
        sources, _ = load_corpus(config.data, data_dir)
        self._dataset = TokenDataset(
            sources,
            seed=config.seed,
            batch_size=config.batch_size,
            validation_batch_size=config.validation_batch_size,
            tokens=config.model.max_sequence_length,
            micro_batches=config.micro_batches,
            replacement=config.replacement,
        )

    def micro_batch(self, step: int, index: int, out: Float32Array, ready: Callable[[int], None]) -> float:
        """Write the counts of windows to `out`; return their number as the loss."""
        if self._fetch is not None:
            self._fetch(len(self.layout.entries) - 1)
        first_ids = self._dataset.micro_batch(step, index).inputs[:, 0]
        out.fill(0.0)
        np.add.at(out, first_ids, 1.0)
        ready(0)
        return float(first_ids.size)


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    sys.exit(
        main(worker_command=make_worker_command("tests.support.cluster.window_tally_worker:WindowTallyStep"))
    )
