"""A worker daemon that computes nothing: `tiermesh worker` with another training step.

The gradient is a constant, and weights are not loaded anywhere, so only the exchange remains of a step. Each worker
connects to the Unix socket that TIERMESH_BENCH_GATE names. It sends `r` when its gradient is ready, waits for a byte,
and sends `l` when the last parameter of the new weights has arrived. TIERMESH_BENCH_ELEMENTS is the number of
parameters of the model, TIERMESH_BENCH_TENSORS the number of tensors.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from cli.daemon_commands import make_worker_command
from cli.main import main
from services.config.job import JobConfig
from services.runtime import process
from services.tensors.layout import Layout
from tests.support.cluster.equal_speed import claim_equal_speed
from tests.support.cluster.step_without_mesh import Float32Array, StepWithoutMesh


class NoComputeStep(StepWithoutMesh):
    """Replacement of `training.step.TrainingStep` that computes nothing."""

    vocabulary = 0

    def __init__(
        self,
        config: JobConfig,
        mesh: Any,
        data_dir: Path | None,
        allowed_models: Collection[str],
        **callbacks: Any,
    ) -> None:
        del data_dir, allowed_models, callbacks
        self.evaluation_batches = config.evaluation_batches or 1
        elements, tensors = (int(os.environ[f"TIERMESH_BENCH_{name}"]) for name in ("ELEMENTS", "TENSORS"))
        size = elements // tensors
        layout = Layout.build((f"t{index}", (size,), False, f"t{index}", False) for index in range(tensors))
        super().__init__(layout, mesh)
        self._gate = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._gate.connect(os.environ["TIERMESH_BENCH_GATE"])

    def load(self, entry_index: int, values: Float32Array) -> None:
        """Copy the values into an array of this process, as a mesh would. Report the last parameter."""
        super().load(entry_index, values)
        if entry_index == len(self.layout.entries) - 1:
            self._gate.sendall(b"l")

    def micro_batch(self, step: int, index: int, out: Float32Array, ready: Callable[[int], None]) -> float:
        """Fill `out` once all weights have arrived, then wait for the gate."""
        del step
        if self._fetch is not None:
            self._fetch(len(self.layout.entries) - 1)
        out.fill(1e-3 * (index + 1))
        self._gate.sendall(b"r")
        self._gate.recv(1)
        ready(0)
        return 0.0

    def close(self) -> None:
        """Close the connection to the gate."""
        self._gate.close()


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    claim_equal_speed()
    sys.exit(main(worker_command=make_worker_command("benchmarks.peers.no_compute_worker:NoComputeStep")))
