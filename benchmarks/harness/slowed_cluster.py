"""A cluster of real daemons with slow workers, and readers of its log and of each micro-batch's start."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.daemons import Job
from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.logged_cluster import LoggedCluster, committed
from services.errors import Failed

WORKERS = 3
MICRO_BATCHES = 10
"""Micro-batches of a step. Three workers get nodes of 4, 4 and 2, so leases differ in size."""
PAUSE_SECONDS = 0.2
HEARTBEAT_SECONDS = 1.0
CONFIG = ROOT / "configs" / "training_configs" / "demo.yaml"
SLOWED_WORKER = Path(__file__).parents[1] / "peers" / "slowed_worker.py"


@dataclass(frozen=True)
class Begun:
    """Start of a micro-batch in a worker's process. Steps count from 0, and seconds are Unix time."""

    step: int
    index: int
    seconds: float


class SlowedCluster(LoggedCluster):
    """A cluster with 3 tiers and a GPT of 0.8 M parameters. Its workers pause before each micro-batch.

    Args:
        name: name of its folder under build/.
    """

    def __init__(self, name: str) -> None:
        self._records = BUILD / name / "records"
        environment = {
            "TIERMESH_BENCH_RECORDS": str(self._records),
            "TIERMESH_BENCH_PAUSE_SECONDS": str(PAUSE_SECONDS),
        }
        settings = (
            "multihost_config.num_workers=1",
            f"training_config.gradient_accumulation_steps={MICRO_BATCHES}",
            "batch_size=2",
        )
        job = Job(CONFIG, SLOWED_WORKER, settings, environment)
        heartbeat = ("--heartbeat-seconds", str(HEARTBEAT_SECONDS))
        super().__init__(name, job, workers=WORKERS, tiers=3, aggregator_options=heartbeat)

    def _open_gate(self, path: Path, stack: ExitStack) -> None:
        """Create the folder of the workers' records. These workers connect to no gate."""
        self._records.mkdir()

    # ---- observations ----

    def begun(self, records: str = "*") -> list[Begun]:
        """Return the micro-batches started so far, by processes whose records match the pattern."""
        lines = [
            line
            for path in self._records.glob(records)
            for line in path.read_text().splitlines(keepends=True)
        ]
        words = [
            line.split() for line in lines if line.endswith("\n")
        ]  # An incomplete line is still being written.
        return [Begun(int(step), int(index), float(seconds)) for step, index, seconds in words]

    def of_worker(self, name: str) -> list[Begun]:
        """Return the micro-batches that the worker's current process has started."""
        return self.begun(f"{name}-{self.processes[name].pid}")

    def until_takes_part(self, name: str, step: int = 0) -> Begun:
        """Wait for the first micro-batch of this step, or of a later one, that the worker's current process starts."""
        return self.until(
            lambda: next((each for each in self.of_worker(name) if each.step >= step), None),
            f"{name} to take part in step {step}",
        )

    def await_moment(self, name: str, fraction: float) -> None:
        """Wait until a worker has completed this fraction of its next lease; 1 is its end."""
        newest, seconds = self.until(lambda: self._lease_seconds(name), f"{name} to compute two steps")
        begun = self.until_takes_part(name, newest + 1)
        self.until_moment(begun.seconds + fraction * seconds, f"a moment of what {name} computes")

    def busiest(self, names: Iterable[str]) -> str:
        """Return the worker that computed most micro-batches of the newest committed step (the first of several)."""
        step = committed(self.events()) - 1
        return max(names, key=lambda name: sum(each.step == step for each in self.of_worker(name)))

    def _lease_seconds(self, name: str) -> tuple[int, float] | None:
        """Return the newest step that a worker has started, and its computing time in the step before."""
        steps: dict[int, list[Begun]] = {}
        for each in self.of_worker(name):
            steps.setdefault(each.step, []).append(each)
        if len(steps) < 2:
            return None
        before, newest = sorted(steps)[-2:]
        return newest, lease_seconds(steps[before])

    # ---- actions ----

    def freeze(self, name: str) -> float:
        """Stop a daemon with SIGSTOP, and return the Unix time of that."""
        seconds = time.time()
        self.processes[name].freeze()
        return seconds

    def thaw(self, name: str) -> None:
        """Continue a frozen daemon with SIGCONT."""
        self.processes[name].thaw()


def lease_seconds(begun: Sequence[Begun]) -> float:
    """Return how long a worker computes in a step, from the starts of its micro-batches.

    The last micro-batch is assumed to take as long as the others.

    Raises:
        Failed: there are fewer than two.
    """
    if len(begun) < 2:
        raise Failed(f"a worker computed {len(begun)} micro-batches of a step, expected at least 2")
    first, last = min(each.seconds for each in begun), max(each.seconds for each in begun)
    return (last - first) * len(begun) / (len(begun) - 1)
