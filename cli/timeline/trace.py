"""Reads the timeline files of several daemons together, and measures how much communication computing hides.

A timeline file is what a daemon writes with `--timeline FOLDER`, in Chrome's trace event format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from services.errors import Refused
from services.input_files import read_input_file

Interval = tuple[float, float]
"""Begin and end, in seconds."""

_TIMELINE_BYTES = 256 << 20
WAITS = "wait for weights"
"""Name of the event in which a forward pass waits for a chunk of weights."""


class Payload(str, Enum):
    """Content of a transfer, which decides what hides it."""

    GRADIENTS = "gradients"
    WEIGHTS = "weights"

    @property
    def hidden_by(self) -> str:
        """Name of the events that run while the payload is on its way."""
        return "backward" if self is Payload.GRADIENTS else "forward"


@dataclass(frozen=True)
class Event:
    """One event of a process.

    Attributes:
        process: title of the daemon.
        row: name of a thread, or of one direction of a link.
        name: name of the activity.
        start: begin in seconds, on a clock that all processes share.
        stop: end in seconds; equal to `start` for a mark.
        args: step, chunk and other values that describe the event.
    """

    process: str
    row: str
    name: str
    start: float
    stop: float
    args: dict[str, Any]

    @property
    def step(self) -> int | None:
        """Step that the event belongs to; None if it names none."""
        return self.args.get("step")

    @property
    def job(self) -> str:
        """Job that the event belongs to; empty if it names none."""
        return str(self.args.get("job", ""))


@dataclass(frozen=True)
class Transfer:
    """A chunk on its way between a worker and the aggregator.

    Attributes:
        worker: title of the worker.
        payload: whether the chunk holds gradients or weights.
        step: step in the chunk's header; step s produces the weights of step s + 1.
        chunk: index of the chunk.
        start: begin of sending, possibly while earlier chunks were still on their way.
        stop: time of arrival.
    """

    worker: str
    payload: Payload
    step: int
    chunk: int
    start: float
    stop: float


@dataclass(frozen=True)
class Overlap:
    """Time on the wire, and the part of it that computing hides.

    Attributes:
        transfer_seconds: time in which at least one chunk was on its way, summed over workers and steps.
        hidden_seconds: part of it in which the worker computed.
    """

    transfer_seconds: float
    hidden_seconds: float

    @property
    def share(self) -> float:
        """Hidden part of the transfer, between 0 and 1."""
        return self.hidden_seconds / self.transfer_seconds


class StepTrace:
    """Timelines that several daemons recorded of the same steps of a job.

    Args:
        folder: folder of the timeline files.
        job: id of the job, or a part of it that no other recorded job has; empty for the only one.

    Raises:
        Refused: there is no file, a file is not a timeline, or it is not clear which job is meant.

    Attributes:
        files: content of each file, by the title of its daemon.
        events: events of all files that are of no other job, in order of their starts.
        titles: titles of the workers by their names.
        workers: titles of those that have computed, sorted: the others are spares.
        transfers: transfers of chunks between workers and the aggregator.
    """

    def __init__(self, folder: Path, job: str = "") -> None:
        paths = sorted(folder.glob("*.json"))
        if not paths:
            raise Refused(
                f"{folder}: no timeline files; give the folder that the daemons wrote to with --timeline"
            )
        contents = [_read_file(path) for path in paths]
        self.files = {str(each["otherData"]["process"]): each for each in contents}
        self._one_clock = len({each["otherData"]["boot_id"] for each in contents}) == 1
        events: list[Event] = []
        for path, content in zip(paths, contents, strict=True):
            try:
                events += self._events(content)
            except (ValueError, TypeError, KeyError, AttributeError):
                raise _not_a_timeline(path) from None
        chosen = _choose_job(folder, {event.job for event in events} - {""}, job)
        own = (event for event in events if event.job in ("", chosen))
        self.events = sorted(own, key=lambda event: event.start)
        self.titles = {  # by the names that other daemons use
            each["otherData"]["name"]: title
            for title, each in self.files.items()
            if each["otherData"]["role"] == "worker"
        }
        computing = {event.process for event in self.events if event.name == "micro-batch"}
        self.workers = sorted(each for each in self.titles.values() if each in computing)
        self.transfers = [*self._gradient_transfers(), *self._weight_transfers()]

    def _offset(self, content: dict[str, Any]) -> float:
        """Return the seconds to add to a file's times: between hosts only the calendar's clock is common."""
        return 0.0 if self._one_clock else float(content["otherData"]["unix_seconds_at_zero"])

    def _events(self, content: dict[str, Any]) -> Iterator[Event]:
        process, raw, offset = content["otherData"]["process"], content["traceEvents"], self._offset(content)
        rows = {each["tid"]: each["args"]["name"] for each in raw if each["name"] == "thread_name"}
        for each in raw:
            if each["ph"] != "M":
                start = each["ts"] / 1e6 + offset
                stop = start + each.get("dur", 0.0) / 1e6
                yield Event(process, rows[each["tid"]], each["name"], start, stop, dict(each["args"]))

    def merged(self) -> dict[str, Any]:
        """Return all files as one, for a trace viewer."""
        events = []
        for number, content in enumerate(self.files.values(), 1):
            offset = 1e6 * self._offset(content)
            for each in content["traceEvents"]:
                moved = {"ts": round(each["ts"] + offset, 3)} if "ts" in each else {}
                events.append({**each, "pid": number, **moved})
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    # ---- transfers ----

    def _gradient_transfers(self) -> Iterator[Transfer]:
        sent = {
            (event.process, event.args.get("lease"), event.args.get("chunk")): event.start
            for event in self.events
            if (event.row, event.name) == ("send", "send")
        }
        for event in self.events:
            if event.name == "gradient" and event.step is not None:
                worker = self.titles.get(event.row.removeprefix("from "), "")
                chunk = event.args.get("chunk", 0)
                start = sent.get((worker, event.args.get("lease"), chunk))
                if start is not None:
                    yield Transfer(worker, Payload.GRADIENTS, event.step, chunk, start, event.stop)

    def _weight_transfers(self) -> Iterator[Transfer]:
        sent = {
            (self.titles.get(event.args["worker"]), event.step, event.args.get("chunk")): event.start
            for event in self.events
            if event.name == "send" and "worker" in event.args
        }
        for event in self.events:
            if (event.row, event.name) == ("receive", "weights") and event.step is not None:
                chunk = event.args.get("chunk", 0)
                start = sent.get((event.process, event.step, chunk))
                if start is not None:
                    yield Transfer(event.process, Payload.WEIGHTS, event.step, chunk, start, event.stop)

    # ---- steps ----

    @property
    def steps(self) -> list[int]:
        """Complete steps: those with a COMMIT and with every worker's passes of this step and the next."""
        commits = {event.step for event in self.events if event.name == "COMMIT" and event.step is not None}
        passes = [
            {event.step for event in self.events if event.process == worker and event.name == "micro-batch"}
            for worker in self.workers
        ]
        return [
            step for step in sorted(commits) if all({step, step + 1} <= of_worker for of_worker in passes)
        ]

    def passes(self, worker: str, name: str, step: int) -> list[Interval]:
        """Return the times of a worker's passes of a step, without those in which it waited for weights.

        Args:
            worker: title of the worker.
            name: forward or backward.
            step: number of the step.
        """
        own = [event for event in self.events if event.process == worker]
        whole = [
            (event.start, event.stop) for event in own if (event.name, event.step) == ("micro-batch", step)
        ]
        computing, waiting = (
            [(event.start, event.stop) for event in own if event.name == wanted and _is_inside(event, whole)]
            for wanted in (name, WAITS)
        )
        return without(computing, waiting)

    def overlap(self, payload: Payload) -> Overlap:
        """Return how much of a payload's transfers the pass that goes on meanwhile hides.

        The backward pass hides gradients. The forward pass of the next step hides weights.

        Raises:
            Refused: no complete step has such a transfer.
        """
        transfer = hidden = 0.0
        for step in self.steps:
            of_step = step if payload is Payload.GRADIENTS else step + 1
            for worker in self.workers:
                moving = union(
                    (each.start, each.stop)
                    for each in self.transfers
                    if (each.worker, each.payload, each.step) == (worker, payload, of_step)
                )
                exposed = without(moving, self.passes(worker, payload.hidden_by, of_step))
                transfer += length(moving)
                hidden += length(moving) - length(exposed)
        if not transfer:
            raise Refused(
                f"the timelines have no complete step with {payload.value} on the wire; record more steps with "
                "--timeline-steps, on every daemon"
            )
        return Overlap(transfer, hidden)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_input_file("", path, _TIMELINE_BYTES))
        origin = content["otherData"]
        for key in ("process", "name", "role", "boot_id"):
            if not isinstance(origin[key], str):
                raise _not_a_timeline(path)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _not_a_timeline(path) from None
    return dict(content)


def _choose_job(folder: Path, recorded: set[str], part: str) -> str:
    """Return the one recorded job whose id contains a text; empty if no event names a job."""
    found = sorted(each for each in recorded if part in each)
    if len(found) > 1 or (part and not found):
        ids = ", ".join(sorted(recorded)) or "no job"
        given = f"--job {part[:100]}" if part else "no --job"
        raise Refused(f"{folder}: {given} given, expected one of the recorded jobs: {ids}")
    return found[0] if found else ""


def _not_a_timeline(path: Path) -> Refused:
    return Refused(
        f"{path}: not a timeline; expected a file that a daemon wrote to --timeline, remove it from the folder"
    )


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same time as disjoint intervals, in order."""
    found: list[Interval] = []
    for start, stop in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def without(intervals: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """Return the time that is in `intervals` and in none of `others`."""
    left = union(intervals)
    for start, stop in union(others):
        cut = [(begin, end) for begin, end in left if end <= start or begin >= stop]
        cut += [(begin, start) for begin, end in left if begin < start < end]
        cut += [(stop, end) for begin, end in left if begin < stop < end]
        left = sorted(cut)
    return left


def length(intervals: Iterable[Interval]) -> float:
    """Return the seconds that disjoint intervals last."""
    return sum(stop - start for start, stop in intervals)


def _is_inside(event: Event, intervals: Sequence[Interval]) -> bool:
    return any(start <= event.start and event.stop <= stop for start, stop in intervals)


def side_by_side(transfers: Iterable[Transfer]) -> list[Transfer]:
    """Return the transfers, each starting at the earliest when the one before it arrived.

    In a picture, bars of one row then don't cover each other.
    """
    found = []
    free_at: dict[tuple[str, Payload], float] = {}
    for each in sorted(transfers, key=lambda each: each.stop):
        row = each.worker, each.payload
        found.append(replace(each, start=max(each.start, free_at.get(row, each.start))))
        free_at[row] = each.stop
    return found
