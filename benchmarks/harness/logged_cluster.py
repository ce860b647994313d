"""A cluster of real daemons whose job's log is read."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.harness.daemons import LIMIT_SECONDS, Daemons
from services.errors import Failed


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


class LoggedCluster(Daemons):
    """A cluster whose job's log tells what happens."""

    def events(self, job: str = "") -> list[Event]:
        """Return the log so far, of one of several jobs or of the only one."""
        lines = [
            line
            for path in (self.folder / "state" / "logs").glob(f"{job}*.jsonl")
            for line in path.read_text().splitlines()
        ]
        return [
            Event(**json.loads(line)) for line in lines if line.endswith("}")
        ]  # An incomplete line is still being written.

    def until_told(self, text: str, since_seconds: float) -> Event:
        """Wait for the first event since that moment that contains this text."""
        return self.until(
            lambda: next((e for e in self.events() if e.seconds >= since_seconds and text in e.text), None),
            f"{text!r} in the job's log",
        )

    def until_committed(self, step: int, limit_seconds: float = LIMIT_SECONDS) -> None:
        """Wait until this many steps are committed."""
        self.until(lambda: committed(self.events()) >= step or None, f"step {step}", limit_seconds)

    def until_more_steps(self, count: int) -> None:
        """Wait until this many more steps are committed."""
        self.until_committed(committed(self.events()) + count)


def committed(events: Iterable[Event]) -> int:
    """Return how many steps are committed."""
    return next((event.committed for event in reversed([*events]) if event.committed), 0)


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
