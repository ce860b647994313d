"""A worker that can be held before a micro-batch: `tiermesh worker` as it is, but for a gate that its passes begin at.

It connects to the Unix socket that TIERMESH_BENCH_GATE names and says a line of JSON whenever it is held, first before
its first micro-batch, with all weights on its mesh: the step, the moments at which its micro-batches since the last
time have ended, and what the passes that it was asked for were like. It is answered `{"passes": n}`, to make so many
forward and backward passes that it sends nothing of, after which it is held again, or `{"until": step}`, to go on until
that step.

Moments are seconds on the clock that all processes of a machine share; of a pass they count from its begin.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cli.daemon_commands import make_worker_command
from cli.main import main
from mesh.device import Mesh
from services.config.job import JobConfig
from services.runtime import process
from training.step import TrainingStep

Float32Array = npt.NDArray[np.float32]


class SteppedStep(TrainingStep):
    """See `TrainingStep`."""

    def __init__(
        self,
        config: JobConfig,
        mesh: Mesh,
        data_dir: Path | None,
        allowed_models: Collection[str],
        **callbacks: Any,
    ) -> None:
        super().__init__(config, mesh, data_dir, allowed_models, **callbacks)
        self._gate = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._gate.connect(os.environ["TIERMESH_BENCH_GATE"])
        self._lines = self._gate.makefile("r")
        self._scratch: Float32Array = np.empty(self.layout.elements, np.float32)
        self._until = 0
        self._ends: list[float] = []

    def micro_batch(self, step: int, index: int, out: Float32Array, ready: Callable[[int], None]) -> float:
        """The micro-batch, when it is let go."""
        if step >= self._until:
            self._until = self._hold(step, index)
        loss = super().micro_batch(step, index, out, ready)
        self._ends.append(time.perf_counter())
        return loss

    def _hold(self, step: int, index: int) -> int:
        """The step to be held at next."""
        for parameter in self._parameters:
            _ = parameter.value
        passes: list[dict[str, Any]] = []
        while True:
            said = {
                "step": step,
                "ends": self._ends,
                "passes": passes,
                "elements": self.layout.elements,
            }
            self._gate.sendall(json.dumps(said).encode() + b"\n")
            self._ends.clear()
            order = json.loads(self._lines.readline())
            if "until" in order:
                return int(order["until"])
            passes = [self._lone_pass(step, index) for _ in range(order["passes"])]

    def _lone_pass(self, step: int, index: int) -> dict[str, Any]:
        uses: list[tuple[int, float]] = []
        ready: list[tuple[int, float]] = []

        def used(entry: int) -> None:
            self._parameters[entry].fetch = None
            uses.append((self.layout.entries[entry].stop, time.perf_counter() - started))

        self.expect(used)
        started = time.perf_counter()
        super().micro_batch(
            step, index, self._scratch, lambda offset: ready.append((offset, time.perf_counter() - started))
        )
        return {"seconds": time.perf_counter() - started, "uses": uses, "ready": ready}

    def close(self) -> None:
        """Leave the gate."""
        self._gate.close()
        super().close()


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    sys.exit(main(worker_command=make_worker_command(SteppedStep)))
