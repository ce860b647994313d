"""What a process does and when, for a few steps of a job: the events of a trace viewer.

There is one recorder a process, as there is one log, off unless a daemon was told `--timeline`. Off, a call costs a
comparison. An event has a lane, which is a thread or one direction of one link; what a lane does is a span, which has a
length, or a mark. All times are those of CLOCK_MONOTONIC, which all processes of a host share.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.errors import Refused

log = logging.getLogger("tiermesh")

_STEP_DIGITS = 18
MAX_EVENTS = 200_000
"""What comes after so many is left out: 30 MB of a file."""


@dataclass(frozen=True)
class TimelineOptions:
    """What is recorded, and where to.

    Attributes:
        folder: for a file named after the process.
        first_step: recording begins with the first event of this step, or of a later one.
        last_step: it ends, and the file is written, with the first event of the step after the next; or with the
            process.
    """

    folder: Path
    first_step: int
    last_step: int

    @property
    def flags(self) -> tuple[str, ...]:
        """The same, on a command line."""
        return (
            "--timeline",
            str(self.folder.absolute()),
            "--timeline-steps",
            f"{self.first_step}-{self.last_step}",
        )

    @classmethod
    def parse(cls, folder: Path, steps: str) -> TimelineOptions:
        """From the command line; steps are `FIRST-LAST`.

        Raises:
            Refused: they are not, or the folder can't be made.
        """
        first, _, last = steps.partition("-")
        digits = all(each.isdecimal() and len(each) <= _STEP_DIGITS for each in (first, last))
        if not digits or int(first) > int(last):
            raise Refused(f"--timeline-steps {steps[:100]}: expected FIRST-LAST, for example 10-12")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refused(
                f"--timeline {folder}: {error.strerror}; expected a folder, or a place for one"
            ) from None
        return cls(folder, int(first), int(last))


class TimelineRecorder:
    """Takes events from any thread, until the last step that is wanted is over."""

    def __init__(self, options: TimelineOptions, role: str, name: str) -> None:
        self._options = options
        self._role = role
        self._title = name if name.startswith(role) else f"{role} {name}"
        self._name = name
        self._events: list[dict[str, Any]] = []
        self._lanes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._begun = self._ended = False

    def wants(self, step: int | None) -> bool:
        """Whether an event of a step is to be recorded; None: of whichever is under way."""
        if self._ended or step is None:
            return self._begun and not self._ended
        if step > self._options.last_step + 1:
            if self._begun:
                self.end()
            return False
        self._begun = self._begun or step >= self._options.first_step
        return self._begun

    def add(self, event: dict[str, Any], lane: str) -> None:
        """Keep an event."""
        with self._lock:
            if len(self._events) < MAX_EVENTS:
                event.update(pid=os.getpid(), tid=self._lanes.setdefault(lane, len(self._lanes)))
                self._events.append(event)

    def end(self) -> None:
        """Record no more; the file is written beside whatever goes on."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        threading.Thread(target=self._write, name="timeline").start()

    def _write(self) -> None:
        path = self._options.folder / f"{self._title.replace(' ', '-').replace(os.sep, '-')}.json"
        pid = os.getpid()
        names = [_named("process_name", pid, 0, self._title)]
        names += [_named("thread_name", pid, number, lane) for lane, number in self._lanes.items()]
        trace = {
            "traceEvents": names + self._events,
            "otherData": {
                "process": self._title,
                "role": self._role,
                "name": self._name,
                "boot_id": _boot_id(),
                "unix_seconds_at_zero": time.time() - time.monotonic(),
            },
        }
        try:
            fresh = path.with_suffix(".part")
            fresh.write_text(json.dumps(trace, separators=(",", ":")))
            fresh.replace(path)
        except OSError as error:  # the job goes on
            log.error("--timeline %s: %s", path, error.strerror)
            return
        log.info("timeline of %d events: %s", len(self._events), path)


_recorder: TimelineRecorder | None = None
_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()


def start(options: TimelineOptions, role: str, name: str) -> None:
    """Record this process's events from now on."""
    global _recorder
    _recorder = TimelineRecorder(options, role, name)


def stop() -> None:
    """Write what there is, if anything was recorded and not yet written."""
    global _recorder
    recorder, _recorder = _recorder, None
    if recorder is not None and recorder.wants(None):
        recorder.end()


def now() -> float:
    """The time by which spans begin, in seconds."""
    return time.monotonic()


def mark(lane: str, name: str, step: int | None = None, **details: Any) -> None:
    """Something happened now; of a step's or, without one, of what is being recorded."""
    recorder = _recorder
    if recorder is not None and recorder.wants(step):
        event = {"ph": "i", "s": "t", "name": name, "ts": _microseconds(now()), "args": _args(step, details)}
        recorder.add(event, lane)


def add(lane: str, name: str, began_seconds: float, step: int | None = None, **details: Any) -> None:
    """Something has been going on since then, and is over now."""
    recorder = _recorder
    if recorder is not None and recorder.wants(step):
        start = _microseconds(began_seconds)
        event = {
            "ph": "X",
            "name": name,
            "ts": start,
            "dur": round(_microseconds(now()) - start, 3),
            "args": _args(step, details),
        }
        recorder.add(event, lane)


def span(lane: str, name: str, step: int | None = None, **details: Any) -> AbstractContextManager[None]:
    """Around what is recorded; also if it fails."""
    return _NOTHING if _recorder is None else _span(lane, name, step, details)


@contextlib.contextmanager
def _span(lane: str, name: str, step: int | None, details: dict[str, Any]) -> Iterator[None]:
    began = now()
    try:
        yield
    finally:
        add(lane, name, began, step, **details)


def _args(step: int | None, details: dict[str, Any]) -> dict[str, Any]:
    return details if step is None else {"step": step, **details}


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 3)


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _boot_id() -> str:
    """Equal in processes whose monotonic clocks are the same; empty where the system doesn't say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
