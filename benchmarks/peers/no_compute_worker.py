"""A worker daemon whose mesh costs nothing: `tiermesh worker` as it is, but for the training step on its mesh.

The gradient is a constant, made before all workers are let go at once, and weights that arrive are loaded nowhere. So
what is left of a step is its exchange, and whoever starts the workers sees by their words when it begins and ends: each
connects to the Unix socket that TIERMESH_BENCH_GATE names, says `r` when its gradient is ready, waits for a byte, and
says `l` when the last parameter of new weights has arrived. TIERMESH_BENCH_ELEMENTS: parameters of the model;
TIERMESH_BENCH_TENSORS: tensors that they are.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cli.daemon_commands import make_worker_command
from cli.main import main
from mesh.device import Mesh
from mesh.fingerprint import compute_fingerprint
from services.config.job import JobConfig
from services.runtime import process
from services.tensors.layout import Layout

Float32Array = npt.NDArray[np.float32]


class NoComputeStep:
    """Stands in for `training.step.TrainingStep`; see there."""

    evaluation_batches = 1
    tokens_per_micro_batch = 1
    micro_batches = 0

    def __init__(
        self,
        config: JobConfig,
        mesh: Mesh,
        data_dir: Path | None,
        allowed_models: Collection[str],
        **callbacks: Any,
    ) -> None:
        del config, data_dir, allowed_models, callbacks
        elements, tensors = (int(os.environ[f"TIERMESH_BENCH_{name}"]) for name in ("ELEMENTS", "TENSORS"))
        size = elements // tensors
        self.layout = Layout.build(
            (f"t{index}", (size,), False, f"t{index}", False) for index in range(tensors)
        )
        self._mesh = mesh
        self._fetch: Callable[[int], None] | None = None
        self._weights = np.zeros(elements, np.float32)
        self._gate = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._gate.connect(os.environ["TIERMESH_BENCH_GATE"])

    def initial_weights(self) -> Float32Array:
        """Zeros."""
        return np.zeros(self.layout.elements, np.float32)

    def expect(self, fetch: Callable[[int], None]) -> None:
        """Newer weights are on their way; a micro-batch waits for all of them."""
        self._fetch = fetch

    def load(self, entry_index: int, values: Float32Array) -> None:
        """Have the values in an array of this process, as a mesh has; say so when it is the last one."""
        if not values.flags.writeable:  # they lie in the aggregator's memory
            entry = self.layout.entries[entry_index]
            self._weights[entry.offset : entry.stop] = values
        if entry_index == len(self.layout.entries) - 1:
            self._gate.sendall(b"l")

    def micro_batch(self, step: int, index: int, out: Float32Array, ready: Callable[[int], None]) -> float:
        """Fill `out` once all weights are there, then wait for the others."""
        del step
        if self._fetch is not None:
            self._fetch(len(self.layout.entries) - 1)
        NoComputeStep.micro_batches += 1
        out.fill(1e-3 * (index + 1))
        self._gate.sendall(b"r")
        self._gate.recv(1)
        ready(0)
        return 0.0

    def evaluate(self, index: int) -> tuple[float, int]:
        """No loss."""
        del index
        return 0.0, 1

    def checkpoint_files(self) -> dict[str, bytes]:
        """A config that says nothing."""
        return {"config.json": b"{}\n"}

    def fingerprint(self) -> dict[str, str]:
        """The emulator's."""
        return compute_fingerprint(self._mesh)

    def close(self) -> None:
        """Leave the gate."""
        self._gate.close()


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    # By this clock every worker is as fast as the others, wherever it waits.
    no_compute_worker = make_worker_command(NoComputeStep, clock=lambda: float(NoComputeStep.micro_batches))
    sys.exit(main(worker_command=no_compute_worker))
