"""A worker that can be paused before a micro-batch: `tiermesh worker` with a gate before its passes.

It connects to the Unix socket that TIERMESH_BENCH_GATE names. Whenever it pauses it sends a line of JSON: the step, the
ends of its micro-batches since the last pause, and the passes that it was asked for. It pauses first before its first
micro-batch, with all weights on its mesh. The answer is `{"passes": n}`, for n passes whose gradients are not sent and
another pause, or `{"until": step}`, to go on until that step.

Moments are seconds on the clock that all processes of a machine share. Moments of a pass count from its start.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from cli.daemon_commands import make_worker_command
from cli.main import main
from services.pipeline.exchange import Compute, FinishedPass
from services.runtime import process
from tests.support.cluster.equal_speed import claim_equal_speed
from training.step import TrainingStep

Float32Array = npt.NDArray[np.float32]


class SteppedStep(TrainingStep):
    """A training step that pauses at the gate."""

    def __init__(self, *arguments: Any, **callbacks: Any) -> None:
        super().__init__(*arguments, **callbacks)
        self._parameters = self.range_steps[0].weights
        self._gate = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._gate.connect(os.environ["TIERMESH_BENCH_GATE"])
        self._lines = self._gate.makefile("r")
        self._scratch: Float32Array = np.empty(self.layout.elements, np.float32)
        self._until = 0
        self._ends: list[float] = []

    def micro_batches(self, step: int, first: int, *lease: Any) -> list[float]:
        """Wait at the gate, then compute the micro-batch."""
        if step >= self._until:
            self._until = self._hold(step, first)
        losses = super().micro_batches(step, first, *lease)
        self._ends.append(time.perf_counter())
        return losses

    def _hold(self, step: int, index: int) -> int:
        """Pause at the gate, and return the step of the next pause."""
        self._parameters.fetch_all()
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
            self._parameters.parameters[entry].fetch = None
            uses.append((self.layout.entries[entry].stop, time.perf_counter() - started))

        def add_leaf(range_index: int, index: int, compute: Compute) -> FinishedPass:
            del range_index, index
            return compute(
                self._scratch, lambda offset: ready.append((offset, time.perf_counter() - started))
            )

        self.expect(used)
        started = time.perf_counter()
        super().micro_batches(step, index, 1, add_leaf)
        return {"seconds": time.perf_counter() - started, "uses": uses, "ready": ready}

    def close(self) -> None:
        """Close the connection to the gate."""
        self._gate.close()
        super().close()


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    claim_equal_speed()  # one that looks slow would get no lease, and so not pause
    sys.exit(main(worker_command=make_worker_command("benchmarks.peers.stepped_worker:SteppedStep")))
