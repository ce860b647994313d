"""Appends lines to the logs of jobs. Lines that a full disk refuses are lost and counted; a later line reports them."""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from services.instrumentation.failpoints import hit_failpoint

log = logging.getLogger("tiermesh.aggregator")


class LogWriter:
    """Writer of the logs in one folder, a JSON line per event.

    Args:
        folder: The folder, which is created when it is first needed.
        count_lost: Counts lines that were lost.
    """

    def __init__(self, folder: Path, count_lost: Callable[[int], None]) -> None:
        self._folder = folder
        self._count_lost = count_lost
        self._lost: dict[str, int] = {}  # lines lost and not yet reported, by job

    def path(self, job: str) -> Path:
        """Return the path of a job's log."""
        return self._folder / f"{job}.jsonl"

    def write(self, job: str, kind: str, text: str, unix_seconds: float) -> None:
        """Append a line to a job's log, after one that reports the lines lost before it."""
        event = {"seconds": round(unix_seconds, 3), "kind": kind, "text": text}
        try:
            hit_failpoint("aggregator.journal.before")
            self._append(job, event)
            hit_failpoint("aggregator.journal.after")
        except OSError as error:
            if job not in self._lost:
                log.warning(
                    "job %s: lines of its log are lost: %s", job, error.strerror or error, extra={"job": job}
                )
            self._lost[job] = self._lost.get(job, 0) + 1
            self._count_lost(1)
            return
        with suppress(OSError):  # a later line reports them
            for other in list(self._lost):
                self._append(other)

    def _append(self, job: str, *events: Mapping[str, object]) -> None:
        """Append events to a log and how many lines it has lost before them, or leave the file as it was (OSError)."""
        lost = self._lost.get(job, 0)
        if lost:
            text = f"{lost} lines of this log were lost before this one, since they could not be written"
            events = ({"seconds": round(time.time(), 3), "kind": "lost", "text": text}, *events)
        self._append_text(job, "".join(f"{json.dumps(event)}\n" for event in events))
        if self._lost.pop(job, 0):
            log.warning("job %s: its log is written again; %d lines are lost", job, lost, extra={"job": job})

    def _append_text(self, job: str, text: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with self.path(job).open("a+b", buffering=0) as file:
            end = file.seek(0, 2)
            if end:
                file.seek(end - 1)
                if file.read(1) != b"\n":
                    text = f"\n{text}"  # a power loss or a full disk has cut the last line off
            data = text.encode()
            try:
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                with suppress(OSError):
                    file.truncate(end)
                raise
