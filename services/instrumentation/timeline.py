"""Timeline: what each part of a process does and when, for a few steps of each job, as events of a trace viewer.

There is one recorder per process. It is off unless a daemon got `--timeline`; then a call costs one comparison. An
event belongs to a row, which is a thread or one direction of one link. An event is a span, which has a duration, or a
mark, which has none. All times are of CLOCK_MONOTONIC, which all processes of a host share.
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
from services.tasks import start_thread

log = logging.getLogger("tiermesh")

_STEP_DIGITS = 18
MAX_EVENTS = 200_000
"""Maximum number of events of a file, about 30 MB; later ones are dropped."""


@dataclass(frozen=True)
class TimelineOptions:
    """Steps to record, and the folder for the file.

    Attributes:
        folder: folder of the file, which is named after the process.
        first_step: step whose first event starts the recording of a job. A later step starts it too.
        last_step: last step wanted. Recording of a job ends with its first event two steps later. Once no job is
            recorded any more, or the process ends, the file is written.
    """

    folder: Path
    first_step: int
    last_step: int

    @property
    def flags(self) -> tuple[str, ...]:
        """The same options as command-line flags."""
        return (
            "--timeline",
            str(self.folder.absolute()),
            "--timeline-steps",
            f"{self.first_step}-{self.last_step}",
        )

    @classmethod
    def parse(cls, folder: Path, steps: str) -> TimelineOptions:
        """Return the options that a command line gives, and create the folder.

        Args:
            folder: value of `--timeline`.
            steps: value of `--timeline-steps`, like `10-12`.

        Raises:
            Refused: the steps are not `FIRST-LAST`, or the folder can't be created.
        """
        first, _, last = steps.partition("-")
        digits = all(each.isdecimal() and len(each) <= _STEP_DIGITS for each in (first, last))
        if not digits or int(first) > int(last):
            raise Refused(f"--timeline-steps {steps[:100]}: expected FIRST-LAST, for example 10-12")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refused(
                f"--timeline {folder}: {error.strerror}; expected a folder, or a path where one can be created"
            ) from None
        return cls(folder, int(first), int(last))


class TimelineRecorder:
    """Recorder of one process. It takes events from any thread until the last step wanted of all its jobs is over."""

    def __init__(
        self, options: TimelineOptions, role: str, name: str, *, max_events: int = MAX_EVENTS
    ) -> None:
        self._options = options
        self._role = role
        self._title = name if name.startswith(role) else f"{role} {name}"
        self._name = name
        self._max_events = max_events
        self._events: list[dict[str, Any]] = []
        self._rows: dict[str, int] = {}
        self._lock = threading.Lock()
        self._recorded: set[str] = set()  # jobs
        self._over: set[str] = set()  # jobs of which the last step wanted is over
        self._ended = False

    def wants(self, step: int | None, job: str = "") -> bool:
        """Return whether to record an event.

        Args:
            step: its step; None for the step under way.
            job: its job; empty for any.
        """
        if self._ended or job in self._over:
            return False
        if step is None:
            return job in self._recorded if job else bool(self._recorded)
        if step > self._options.last_step + 1:
            if job in self._recorded:
                self._over.add(job)
                self._recorded.discard(job)
                if not self._recorded:
                    self.end()
            return False
        if step >= self._options.first_step:
            self._recorded.add(job)
        return job in self._recorded

    def add(self, event: dict[str, Any], row: str) -> None:
        """Record an event."""
        with self._lock:
            if len(self._events) < self._max_events:
                event.update(pid=os.getpid(), tid=self._rows.setdefault(row, len(self._rows)))
                self._events.append(event)

    def end(self) -> None:
        """Stop recording, and write the file on a thread of its own."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        start_thread(self._write, "timeline", daemon=False)

    def _write(self) -> None:
        path = self._options.folder / f"{self._title.replace(' ', '-').replace(os.sep, '-')}.json"
        pid = os.getpid()
        names = [_named("process_name", pid, 0, self._title)]
        names += [_named("thread_name", pid, number, row) for row, number in self._rows.items()]
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
        except OSError as error:  # no reason to end the job
            log.error("--timeline %s: %s", path, error.strerror)
            return
        log.info("timeline of %d events: %s", len(self._events), path)


_recorder: TimelineRecorder | None = None
_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()


def start(options: TimelineOptions, role: str, name: str, *, max_events: int = MAX_EVENTS) -> None:
    """Start to record this process's events."""
    global _recorder
    _recorder = TimelineRecorder(options, role, name, max_events=max_events)


def stop() -> None:
    """Stop recording, and write the file if it has any events and is not written yet."""
    global _recorder
    recorder, _recorder = _recorder, None
    if recorder is not None and recorder.wants(None):
        recorder.end()


def now() -> float:
    """Return the time on the clock of all events, in seconds."""
    return time.monotonic()


def mark(row: str, name: str, step: int | None = None, *, job: str = "", **details: Any) -> None:
    """Record a mark at the current time.

    Args:
        row: thread, or direction of a link, that the mark belongs to.
        name: name of the event.
        step: step that it belongs to; None if it is recorded with any step.
        job: job that it belongs to; empty if it is recorded with any job.
        details: values that the viewer shows with it.
    """
    recorder = _recorder
    if recorder is not None and recorder.wants(step, job):
        args = _args(step, job, details)
        event = {"ph": "i", "s": "t", "name": name, "ts": _microseconds(now()), "args": args}
        recorder.add(event, row)


def add(
    row: str,
    name: str,
    began_seconds: float,
    step: int | None = None,
    *,
    ended_seconds: float | None = None,
    job: str = "",
    **details: Any,
) -> None:
    """Record a span that has ended.

    Args:
        row: thread, or direction of a link, that did it.
        name: name of the event.
        began_seconds: start of the span, as `now` returned it.
        ended_seconds: end of the span; None for now.
        step: step that it belongs to; None if it is recorded with any step.
        job: job that it belongs to; empty if it is recorded with any job.
        details: values that the viewer shows with it.
    """
    recorder = _recorder
    if recorder is not None and recorder.wants(step, job):
        start = _microseconds(began_seconds)
        event = {
            "ph": "X",
            "name": name,
            "ts": start,
            "dur": round(_microseconds(now() if ended_seconds is None else ended_seconds) - start, 3),
            "args": _args(step, job, details),
        }
        recorder.add(event, row)


def span(
    row: str, name: str, step: int | None = None, *, job: str = "", **details: Any
) -> AbstractContextManager[None]:
    """Return a context manager that records its body as a span, also if the body fails.

    Args:
        row: thread, or direction of a link, that does it.
        name: name of the event.
        step: step that it belongs to; None if it is recorded with any step.
        job: job that it belongs to; empty if it is recorded with any job.
        details: values that the viewer shows with it.
    """
    return _NOTHING if _recorder is None else _span(row, name, step, job, details)


@contextlib.contextmanager
def _span(row: str, name: str, step: int | None, job: str, details: dict[str, Any]) -> Iterator[None]:
    began = now()
    try:
        yield
    finally:
        add(row, name, began, step, job=job, **details)


def _args(step: int | None, job: str, details: dict[str, Any]) -> dict[str, Any]:
    named = {"job": job} if job else {}
    return {**named, **details} if step is None else {"step": step, **named, **details}


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 3)


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _boot_id() -> str:
    """Return an id that processes with the same monotonic clock share; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
