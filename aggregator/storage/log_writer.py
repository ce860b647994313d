"""Appends lines to the logs of jobs. Lines that a cap removes or a full disk refuses are counted and reported."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from aggregator.storage.capped_log import CappedLog
from aggregator.storage.log_lines import Line
from aggregator.storage.loss_mark import LossMark
from services.caps import MB, Cap
from services.instrumentation.failpoints import hit_failpoint
from services.printable import counted

log = logging.getLogger("tiermesh.aggregator")

_LOST_BEFORE = (
    "lines of this log or of another job's may be missing before this one: the aggregator was killed while they could "
    "not be written"
)


class LogWriter:
    """Writer of the logs in one folder, a JSON line per event.

    Args:
        folder: the folder, which is created when it is first needed.
        max_bytes: the largest size of a log.
        count_lost: counts lines that were lost.
        count_cap_reached: called when a log has reached its cap.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        count_lost: Callable[[int], None],
        count_cap_reached: Callable[[Cap], None],
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._count_lost = count_lost
        self._count_cap_reached = count_cap_reached
        self._lost: dict[str, int] = {}  # lines lost and not yet reported, by job
        self._mark = LossMark(folder / ".lost")
        self._lost_before = self._mark.is_set  # by an aggregator that was killed before it could report them

    def log_of(self, job: str) -> CappedLog:
        """Return a job's log."""
        return CappedLog(self._folder, job, self._max_bytes)

    def forget(self, job: str) -> None:
        """Tell no more of what a job's log has lost, since the log is removed."""
        self._lost.pop(job, None)

    def write(self, job: str, lines: Sequence[Line], unix_seconds: float) -> None:
        """Append lines to a job's log, all or none, after one that reports the lines lost before them."""
        seconds = round(unix_seconds, 3)
        events = [{"seconds": seconds, "kind": line.kind, "text": line.text} for line in lines]
        try:
            hit_failpoint("aggregator.journal.before")
            self._append(job, *events)
            hit_failpoint("aggregator.journal.after")
        except OSError as error:
            if job not in self._lost:
                log.warning(
                    "job %s: lines of its log are lost: %s", job, error.strerror or error, extra={"job": job}
                )
            self._mark.change(lost=True)
            self._lost[job] = self._lost.get(job, 0) + len(events)
            self._count_lost(len(events))
            return
        with suppress(OSError):  # a later line reports them
            for other in list(self._lost):
                self._append(other)
        self._mark.prepare()
        if not self._lost and not self._lost_before:
            self._mark.change(lost=False)

    def _append(self, job: str, *events: Mapping[str, object]) -> None:
        """Append events to a log and how many lines it has lost before them, or leave the file as it was (OSError)."""
        lost = self._lost.get(job, 0)
        if lost:
            text = f"{counted(lost, 'line')} of this log could not be written before this one"
            events = ({"seconds": round(time.time(), 3), "kind": "lost", "text": text}, *events)
        told = self._lost_before and self.log_of(job).first.exists()
        if told:
            events = ({"seconds": round(time.time(), 3), "kind": "lost", "text": _LOST_BEFORE}, *events)
            log.warning("job %s: %s", job, _LOST_BEFORE, extra={"job": job})
        self._append_text(job, "".join(f"{json.dumps(event)}\n" for event in events))
        if told:
            self._lost_before = False
        if self._lost.pop(job, 0):
            log.warning("job %s: its log is written again; %d lines are lost", job, lost, extra={"job": job})

    def _append_text(self, job: str, text: str) -> None:
        data, lines = text.encode(), self.log_of(job)
        removed = lines.make_room(len(data))
        if removed:
            self._count_lost(removed)
            self._count_cap_reached(Cap.LOG_BYTES)
            log.warning(
                "job %s: its log has reached its cap of %g MB (--max-log-mb): %d lines are removed from its middle",
                job, self._max_bytes / MB, removed, extra={"job": job},
            )  # fmt: skip
        lines.append(data)
