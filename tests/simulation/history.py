"""Rules for the history of a cluster, simulated or real. Events come in order, and a wrong one raises.

- A step of a generation is committed at most once. Versions (generation, step) rise strictly: by one step within a
  generation, and to any step with a new generation.
- The sum that a step is committed with covers each chunk of the layout, with each of the step's micro-batches once.
- A step of a generation is reported at most once.
- When faults have ended, all jobs end within a bound that grows with the number of remaining steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


class InvalidHistory(AssertionError):
    """An event that breaks a rule."""


@dataclass(frozen=True)
class Planned:
    """Shape of a job's steps: numbers of micro-batches and chunks."""

    job: str
    micro_batches: int
    chunks: int


@dataclass(frozen=True)
class Covered:
    """A chunk of a step's sum is complete. `micro_batches` has one entry for each addition."""

    job: str
    generation: int
    step: int
    chunk: int
    micro_batches: tuple[int, ...]


@dataclass(frozen=True)
class Committed:
    """The optimizer committed a step."""

    job: str
    generation: int
    step: int


@dataclass(frozen=True)
class Reported:
    """The aggregator reported the weights after `step` updates."""

    job: str
    generation: int
    step: int


@dataclass(frozen=True)
class FaultsEnded:
    """Faults have ended. All jobs must end within this many ticks."""

    tick: float
    within_ticks: float


@dataclass(frozen=True)
class Ticked:
    """Time has passed, and not all jobs have ended."""

    tick: float


Event = Planned | Covered | Committed | Reported | FaultsEnded | Ticked


@dataclass
class _JobHistory:
    planned: Planned
    version: tuple[int, int] = (0, -1)
    covered: set[int] = field(default_factory=set)
    covered_version: tuple[int, int] = (0, -1)
    committed: set[tuple[int, int]] = field(default_factory=set)
    reported: set[tuple[int, int]] = field(default_factory=set)


class HistoryChecker:
    """Checks events against the rules, in order."""

    def __init__(self) -> None:
        self._jobs: dict[str, _JobHistory] = {}
        self._end: FaultsEnded | None = None

    def add(self, event: Event) -> None:
        """Check the next event.

        Raises:
            InvalidHistory: the event can't follow the earlier ones.
        """
        match event:
            case Planned():
                known = self._jobs.setdefault(event.job, _JobHistory(event)).planned
                _must(known == event, event, f"the job was planned as {known} before")
            case Covered():
                self._covered(self._jobs[event.job], event)
            case Committed():
                self._committed(self._jobs[event.job], event)
            case Reported():
                job, version = self._jobs[event.job], (event.generation, event.step)
                _must(version not in job.reported, event, "it was reported before")
                job.reported.add(version)
            case FaultsEnded():
                self._end = event
            case Ticked() if self._end is not None:
                _must(event.tick - self._end.tick <= self._end.within_ticks, event, f"after {self._end}")

    def _covered(self, job: _JobHistory, event: Covered) -> None:
        counts = Counter(event.micro_batches)
        lost = [each for each in range(job.planned.micro_batches) if not counts.pop(each, 0)]
        twice = sorted(each for each, count in Counter(event.micro_batches).items() if count > 1)
        _must(
            not lost and not twice, event, f"micro-batches {lost} were lost, {twice} counted more than once"
        )
        _must(not counts, event, f"micro-batches {sorted(counts)} are none of this step")
        _must(event.chunk < job.planned.chunks, event, f"the layout has {job.planned.chunks} chunks")
        version = (event.generation, event.step)
        if version != job.covered_version:
            job.covered_version, job.covered = version, set()
        job.covered.add(event.chunk)

    def _committed(self, job: _JobHistory, event: Committed) -> None:
        version, last = (event.generation, event.step), job.version
        _must(version not in job.committed, event, "it was committed before")
        _must(version > last, event, f"it comes after {last}")
        _must(version[0] > last[0] or version[1] == last[1] + 1, event, f"it comes right after {last}")
        covered = job.covered if job.covered_version == version else set()
        missing = sorted(set(range(job.planned.chunks)) - covered)
        _must(not missing, event, f"its sum lacks chunks {missing}")
        job.version = version
        job.committed.add(version)


def check(events: Iterable[Event]) -> int:
    """Check a whole history, and return how many steps were committed.

    Raises:
        InvalidHistory: an event can't follow the earlier ones.
    """
    checker, commits = HistoryChecker(), 0
    for event in events:
        checker.add(event)
        commits += isinstance(event, Committed)
    return commits


def _must(condition: bool, event: Event, text: str) -> None:
    if not condition:
        raise InvalidHistory(f"{event}: {text}")
