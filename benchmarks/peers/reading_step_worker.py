"""A worker as that of paced_step_worker.py, which reads each gradient from an array and checks it, as from a mesh."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from benchmarks.peers.paced_step_worker import PacedStep
from cli.daemon_commands import make_worker_command
from cli.main import main
from services.runtime import process
from services.tensors.kernels.arithmetic import all_finite
from tests.support.cluster.step_without_mesh import Float32Array


class ReadingStep(PacedStep):
    """A `PacedStep` with gradients in memory of its own."""

    def __init__(self, *arguments: Any, **callbacks: Any) -> None:
        super().__init__(*arguments, **callbacks)
        self._device = np.full(max(each.size for each in self.layout.entries), 1e-3, np.float32)

    def _write_gradient(self, place: Float32Array, index: int) -> None:
        place[:] = self._device[: place.size]
        assert all_finite(place)


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    sys.exit(main(worker_command=make_worker_command("benchmarks.peers.reading_step_worker:ReadingStep")))
