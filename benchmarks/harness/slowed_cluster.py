"""A cluster of real daemons whose workers are slow, and what is seen of it: its log, and each micro-batch's begin."""

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
"""Of a step: nodes of 4, 4 and 2 for three workers, so that leases are uneven."""
PAUSE_SECONDS = 0.2
HEARTBEAT_SECONDS = 1.0
CONFIG = ROOT / "configs" / "training_configs" / "demo.yaml"
SLOWED_WORKER = Path(__file__).parents[1] / "peers" / "slowed_worker.py"


@dataclass(frozen=True)
class Event:
    """A line of the job's log; seconds in Unix time."""

    seconds: float
    kind: str
    text: str

    @property
    def committed(self) -> int:
        """How many steps are committed with it; 0: it tells of no step."""
        found = re.match(r"Step: (\d+)", self.text) if self.kind == "step" else None
        return int(found[1]) if found else 0


@dataclass(frozen=True)
class Begun:
    """A micro-batch that a worker's process began; the step counts from 0, seconds in Unix time."""

    step: int
    index: int
    seconds: float


class SlowedCluster(Daemons):
    """See `Daemons`; 3 tiers, a GPT of 0.8 M parameters, and a pause before each micro-batch.

    Args:
        name: of its folder under build/.
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
        """There is none; but the workers' records need a folder."""
        self._records.mkdir()

    # ---- what is seen ----

    def events(self) -> list[Event]:
        """The job's log so far."""
        lines = [
            line
            for path in (self.folder / "state" / "logs").glob("*.jsonl")
            for line in path.read_text().splitlines()
        ]
        return [Event(**json.loads(line)) for line in lines if line.endswith("}")]  # else it is being written

    def begun(self, records: str = "*") -> list[Begun]:
        """The micro-batches that were begun, by the processes of these records."""
        lines = [
            line
            for path in self._records.glob(records)
            for line in path.read_text().splitlines(keepends=True)
        ]
        words = [line.split() for line in lines if line.endswith("\n")]  # else it is being written
        return [Begun(int(step), int(index), float(seconds)) for step, index, seconds in words]

    def of_worker(self, name: str) -> list[Begun]:
        """What the process that is that worker now has begun."""
        return self.begun(f"{name}-{self.processes[name].pid}")

    def until_told(self, text: str, since_seconds: float) -> Event:
        """The first event since then that has this text."""
        return self.until(
            lambda: next((e for e in self.events() if e.seconds >= since_seconds and text in e.text), None),
            f"{text!r} in the job's log",
        )

    def until_committed(self, step: int) -> None:
        """Wait until so many steps are committed."""
        self.until(lambda: committed(self.events()) >= step or None, f"step {step}")

    def until_more_steps(self, count: int) -> None:
        """Wait until so many steps more are committed."""
        self.until_committed(committed(self.events()) + count)

    def until_takes_part(self, name: str, step: int = 0) -> Begun:
        """The first micro-batch of this step, or of a later one, that the process which is that worker now begins."""
        return self.until(
            lambda: next((each for each in self.of_worker(name) if each.step >= step), None),
            f"{name} to take part in step {step}",
        )

    def await_moment(self, name: str, part: float) -> None:
        """Wait until a worker has done that part of what it computes in a step, 1 being the end of it."""
        newest, seconds = self.until(lambda: self._lease_seconds(name), f"{name} to compute two steps")
        begun = self.until_takes_part(name, newest + 1)
        self.until_moment(begun.seconds + part * seconds, f"a moment of what {name} computes")

    def busiest(self, names: Iterable[str]) -> str:
        """Of these workers, the (first) one that computed most of the newest step that is committed."""
        step = committed(self.events()) - 1
        return max(names, key=lambda name: sum(each.step == step for each in self.of_worker(name)))

    def _lease_seconds(self, name: str) -> tuple[int, float] | None:
        """The newest step that a worker has begun, and how long it computed in the one before."""
        steps: dict[int, list[Begun]] = {}
        for each in self.of_worker(name):
            steps.setdefault(each.step, []).append(each)
        if len(steps) < 2:
            return None
        before, newest = sorted(steps)[-2:]
        return newest, lease_seconds(steps[before])

    # ---- what is done ----

    def freeze(self, name: str) -> float:
        """SIGSTOP; returns when that was, in Unix time."""
        seconds = time.time()
        self.processes[name].freeze()
        return seconds

    def thaw(self, name: str) -> None:
        """SIGCONT."""
        self.processes[name].thaw()


def committed(events: Iterable[Event]) -> int:
    """How many steps are committed."""
    return next((event.committed for event in reversed([*events]) if event.committed), 0)


def lease_seconds(begun: Sequence[Begun]) -> float:
    """How long a worker computes in a step of which it began these micro-batches; the last takes as long as the others.

    Raises:
        Failed: there are less than two.
    """
    if len(begun) < 2:
        raise Failed(f"a worker that computes {len(begun)} micro-batches of a step: expected 2 at least")
    first, last = min(each.seconds for each in begun), max(each.seconds for each in begun)
    return (last - first) * len(begun) / (len(begun) - 1)


def steps_around(
    events: Iterable[Event], at_seconds: float, count: int
) -> tuple[list[float], float, list[float]]:
    """The times of steps, from COMMIT to COMMIT: of so many before the one in which a moment fell, of that one, of as
    many after it.

    Raises:
        Failed: the log has not so many.
    """
    times = [event.seconds for event in events if event.committed]
    each = [after - before for before, after in itertools.pairwise(times)]
    at = sum(seconds < at_seconds for seconds in times) - 1
    if at < count or at + count >= len(each):
        raise Failed(f"the job's log has not {count} steps before and after a moment that is measured")
    return each[at - count : at], each[at], each[at + 1 : at + 1 + count]
