"""Steps as daemons recorded them (`--timeline`): their files read together, and what of the exchange is hidden."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from services.errors import Refused

Interval = tuple[float, float]
"""Begin and end, in seconds."""
WAITS = "wait for weights"


@dataclass(frozen=True)
class Event:
    """Something that a lane of a process did.

    Attributes:
        process: title of the daemon.
        lane: a thread, or one direction of a link.
        name: what it did.
        start: in seconds, on a clock that all processes share.
        stop: the same as `start` for a mark.
        args: step, chunk and what else tells it from others.
    """

    process: str
    lane: str
    name: str
    start: float
    stop: float
    args: dict[str, Any]

    @property
    def step(self) -> int | None:
        """The step that it is of, if it says so."""
        return self.args.get("step")


@dataclass(frozen=True)
class Transfer:
    """A chunk on its way.

    Attributes:
        worker: at one end.
        up: whether it is of a gradient, else of weights.
        step: of its header: weights of step s + 1 are what step s gave.
        chunk: its index.
        start: when its sender began with it, maybe while chunks before it were still on their way.
        stop: when it had arrived.
    """

    worker: str
    up: bool
    step: int
    chunk: int
    start: float
    stop: float


@dataclass(frozen=True)
class Hidden:
    """Of transfers: seconds in which something was on its way, and those of them in which the worker computed."""

    transfer: float
    overlap: float

    @property
    def share(self) -> float:
        """The part of the transfer that computing hides."""
        return self.overlap / self.transfer


class StepTrace:
    """All that daemons recorded of the same steps.

    Args:
        folder: with the files that they wrote.

    Raises:
        Refused: there is none, or one that is something else.

    Attributes:
        files: as they were read, by title of the daemon.
        events: of all of them, in order of their starts.
        workers: their titles.
        transfers: of chunks between workers and aggregators.
    """

    def __init__(self, folder: Path) -> None:
        paths = sorted(folder.glob("*.json"))
        if not paths:
            raise Refused(f"{folder}: no timeline's file; expected the folder of daemons' --timeline")
        self.files: dict[str, dict[str, Any]] = {}
        for path in paths:
            try:
                content = json.loads(path.read_text())
                self.files[content["otherData"]["process"]] = content
            except (ValueError, TypeError, KeyError):
                raise Refused(f"{path}: no timeline; expected a file that a daemon wrote") from None
        clocks = {each["otherData"]["boot_id"] for each in self.files.values()}
        self._one_clock = len(clocks) == 1
        self.events = sorted(
            (event for name in self.files for event in self._events(name)), key=lambda event: event.start
        )
        self._workers = {  # by the name that others know them by
            content["otherData"]["name"]: title
            for title, content in self.files.items()
            if content["otherData"]["role"] == "worker"
        }
        self.workers = sorted(self._workers.values())
        self.transfers = [*self._up(), *self._down()]

    def _offset(self, content: dict[str, Any]) -> float:
        """Seconds to add to a file's times: hosts have no clock in common but that of the calendar."""
        return 0.0 if self._one_clock else float(content["otherData"]["unix_seconds_at_zero"])

    def _events(self, name: str) -> Iterable[Event]:
        content = self.files[name]
        raw, offset = content["traceEvents"], self._offset(content)
        lanes = {each["tid"]: each["args"]["name"] for each in raw if each["name"] == "thread_name"}
        for each in raw:
            if each["ph"] != "M":
                start = each["ts"] / 1e6 + offset
                stop = start + each.get("dur", 0.0) / 1e6
                yield Event(name, lanes[each["tid"]], each["name"], start, stop, each["args"])

    def merged(self) -> dict[str, Any]:
        """One file of all, for a trace viewer."""
        events = []
        for number, content in enumerate(self.files.values(), 1):
            offset = 1e6 * self._offset(content)
            for each in content["traceEvents"]:
                moved = {"ts": round(each["ts"] + offset, 3)} if "ts" in each else {}
                events.append({**each, "pid": number, **moved})
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    # ---- what was on its way ----

    def _up(self) -> list[Transfer]:
        begun = {
            (event.process, event.args["lease"], event.args["chunk"]): event.start
            for event in self.events
            if (event.lane, event.name) == ("send", "send")
        }
        found = []
        for event in self.events:
            if event.name == "gradient":
                worker = self._workers.get(event.lane.removeprefix("from "), "")
                start = begun.get((worker, event.args["lease"], event.args["chunk"]))
                if start is not None and event.step is not None:
                    found.append(Transfer(worker, True, event.step, event.args["chunk"], start, event.stop))
        return found

    def _down(self) -> list[Transfer]:
        begun = {
            (self._workers.get(event.args["worker"]), event.step, event.args["chunk"]): event.start
            for event in self.events
            if event.name == "send" and "worker" in event.args
        }
        found = []
        for event in self.events:
            if (event.lane, event.name) == ("receive", "weights"):
                start = begun.get((event.process, event.step, event.args["chunk"]))
                if start is not None and event.step is not None:
                    found.append(
                        Transfer(event.process, False, event.step, event.args["chunk"], start, event.stop)
                    )
        return found

    # ---- steps ----

    @property
    def steps(self) -> list[int]:
        """The steps of which all is there: every worker's passes, from the first to the next step's, and the COMMIT."""
        commits = {event.step for event in self.events if event.name == "COMMIT"}
        passes = [
            {event.step for event in self.events if event.process == worker and event.name == "micro-batch"}
            for worker in self.workers
        ]
        return [
            step
            for step in sorted(_known(commits))
            if all({step, step + 1} <= of_worker for of_worker in passes)
        ]

    def passes(self, worker: str, name: str, step: int) -> list[Interval]:
        """A worker's forward or backward passes of a step, without the time in which they waited for weights."""
        whole = [
            (event.start, event.stop)
            for event in self.events
            if (event.process, event.name, event.step) == (worker, "micro-batch", step)
        ]
        computing = [
            (event.start, event.stop)
            for event in self.events
            if (event.process, event.name) == (worker, name) and _inside(event, whole)
        ]
        waits = [
            (event.start, event.stop)
            for event in self.events
            if (event.process, event.name) == (worker, WAITS) and _inside(event, whole)
        ]
        return without(computing, waits)

    def hidden(self, *, up: bool) -> Hidden:
        """Of gradients, what the worker's backward pass hides; of weights, what its next forward pass does."""
        transfer = overlap = 0.0
        for step in self.steps:
            of, name = (step, "backward") if up else (step + 1, "forward")
            for worker in self.workers:
                moving = union(
                    (each.start, each.stop)
                    for each in self.transfers
                    if (each.worker, each.up, each.step) == (worker, up, of)
                )
                transfer += length(moving)
                overlap += length(moving) - length(without(moving, self.passes(worker, name, of)))
        if not transfer:
            raise Refused("the timelines have no complete step; record more (--timeline-steps)")
        return Hidden(transfer, overlap)


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time, in intervals that are apart from each other, in order."""
    found: list[Interval] = []
    for start, stop in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def without(intervals: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """What of the intervals is in none of the others."""
    left = union(intervals)
    for start, stop in union(others):
        cut = [(begin, end) for begin, end in left if end <= start or begin >= stop]
        cut += [(begin, start) for begin, end in left if begin < start < end]
        cut += [(stop, end) for begin, end in left if begin < stop < end]
        left = sorted(cut)
    return left


def length(intervals: Iterable[Interval]) -> float:
    """Seconds, of intervals that are apart."""
    return sum(stop - start for start, stop in intervals)


def _inside(event: Event, intervals: Sequence[Interval]) -> bool:
    return any(start <= event.start and event.stop <= stop for start, stop in intervals)


def _known(steps: Iterable[int | None]) -> list[int]:
    return [step for step in steps if step is not None]


def side_by_side(transfers: Iterable[Transfer]) -> list[Transfer]:
    """Each from when the one before it had arrived, if it began earlier: none over another in a row of a picture."""
    found = []
    free_at: dict[tuple[str, bool], float] = {}
    for each in sorted(transfers, key=lambda each: each.stop):
        row = each.worker, each.up
        found.append(replace(each, start=max(each.start, free_at.get(row, each.start))))
        free_at[row] = each.stop
    return found
