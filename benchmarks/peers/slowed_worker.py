"""A slow worker: `tiermesh worker` with a pause before each forward pass.

It appends a line `STEP INDEX SECONDS` (Unix time) at the start of each micro-batch, to the file `NAME-PROCESS` in the
folder that TIERMESH_BENCH_RECORDS names. TIERMESH_BENCH_PAUSE_SECONDS is the length of the pause.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cli.daemon_commands import make_worker_command
from cli.main import main
from services.runtime import process
from training.step import TrainingStep

Float32Array = npt.NDArray[np.float32]


class SlowedStep(TrainingStep):
    """A training step that pauses before each micro-batch."""

    def __init__(self, *arguments: Any, **callbacks: Any) -> None:
        super().__init__(*arguments, **callbacks)
        name = sys.argv[sys.argv.index("--name") + 1]
        self._record = Path(os.environ["TIERMESH_BENCH_RECORDS"]) / f"{name}-{os.getpid()}"
        self._pause_seconds = float(os.environ["TIERMESH_BENCH_PAUSE_SECONDS"])

    def micro_batches(self, step: int, first: int, *lease: Any) -> list[float]:
        """Record the start, pause, and compute the micro-batch."""
        with self._record.open("a") as file:
            file.write(f"{step} {first} {time.time():.6f}\n")
        # The sleep is the load: the time a larger model takes on a device. Computing for so long would take CPU time
        # from the other daemons, which share this machine's cores.
        time.sleep(self._pause_seconds)
        return super().micro_batches(step, first, *lease)


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    sys.exit(main(worker_command=make_worker_command("benchmarks.peers.slowed_worker:SlowedStep")))
