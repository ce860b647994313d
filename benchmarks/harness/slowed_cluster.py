"""A cluster of real daemons with slow workers, and readers of its log and of each micro-batch's start."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.daemons import Daemons, Job
from benchmarks.harness.job_settings import BUILD, ROOT
from services.errors import Failed

WORKERS = 3
MICRO_BATCHES = 10
"""Micro-batches of a step. Three workers get nodes of 4, 4 and 2, so leases differ in size."""
PAUSE_SECONDS = 0.2
HEARTBEAT_SECONDS = 1.0
CONFIG = ROOT / "configs" / "training_configs" / "demo.yaml"
SLOWED_WORKER = Path(__file__).parents[1] / "peers" / "slowed_worker.py"


@dataclass(frozen=True)
class Event:
    """One line of the job's log. Seconds are Unix time."""

    seconds: float
    kind: str
    text: str

    @property
    def committed(self) -> int:
        """Number of steps committed with this event, or 0 for an event that reports no step."""
        found = re.match(r"Step:? (\d+)", self.text) if self.kind == "step" else None
        return int(found[1]) if found else 0


@dataclass(frozen=True)
class Begun:
    """Start of a micro-batch in a worker's process. Steps count from 0, and seconds are Unix time."""

    step: int
    index: int
    seconds: float


class SlowedCluster(Daemons):
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

    def events(self) -> list[Event]:
        """Return the job's log so far."""
        lines = [
            line
            for path in (self.folder / "state" / "logs").glob("*.jsonl")
            for line in path.read_text().splitlines()
        ]
        return [
            Event(**json.loads(line)) for line in lines if line.endswith("}")
        ]  # An incomplete line is still being written.

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

    def until_told(self, text: str, since_seconds: float) -> Event:
        """Wait for the first event since that moment that contains this text."""
        return self.until(
            lambda: next((e for e in self.events() if e.seconds >= since_seconds and text in e.text), None),
            f"{text!r} in the job's log",
        )

    def until_committed(self, step: int) -> None:
        """Wait until this many steps are committed."""
        self.until(lambda: committed(self.events()) >= step or None, f"step {step}")

    def until_more_steps(self, count: int) -> None:
        """Wait until this many more steps are committed."""
        self.until_committed(committed(self.events()) + count)

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


def committed(events: Iterable[Event]) -> int:
    """Return how many steps are committed."""
    return next((event.committed for event in reversed([*events]) if event.committed), 0)


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


def steps_around(
    events: Iterable[Event], at_seconds: float, count: int
) -> tuple[list[float], float, list[float]]:
    """Return durations of steps, from COMMIT to COMMIT: `count` before a moment, the one around it, `count` after it.

    Raises:
        Failed: the log has too few steps.
    """
    times = [event.seconds for event in events if event.committed]
    each = [after - before for before, after in itertools.pairwise(times)]
    at = sum(seconds < at_seconds for seconds in times) - 1
    if at < count or at + count >= len(each):
        raise Failed(f"the job's log has fewer than {count} steps before or after the measured moment")
    return each[at - count : at], each[at], each[at + 1 : at + 1 + count]
