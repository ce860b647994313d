"""Output of a command: text for people and, with `--json`, one object on the last line of standard output."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from cli.words import spell_duration
from services.printable import counted, escape, printable

if TYPE_CHECKING:
    from protos import jobs_pb2


_PHASES = {
    "initialise": "making weights",
    "train": "training",
    "evaluate": "evaluating",
    "checkpoint": "saving",
}
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that change what a terminal shows of other text; line ends and tabs are not among them."""
_PLAIN_TERMINALS = ("dumb", "linux")
"""Values of TERM of terminals whose fonts lack Braille; `linux` is the console without a desktop."""


class Output:
    """Writes text and the result of a command.

    Attributes:
        as_json: whether the result goes to standard output as JSON; text then goes to standard error.
        has_result: whether the result was written already.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.has_result = False
        self._is_announced = False

    def announce(self, text: str) -> None:
        """Show on a terminal what the command does now, until the next output; nothing without a terminal."""
        self.erase()
        if sys.stderr.isatty():
            columns = shutil.get_terminal_size().columns
            print(printable(f"{text} ...", max(20, columns - 1)), end="", file=sys.stderr, flush=True)
            self._is_announced = True

    def erase(self) -> None:
        """Erase what `announce` has shown."""
        if self._is_announced:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._is_announced = False

    @property
    def width(self) -> int | None:
        """Columns that text should fit: those of the terminal, or COLUMNS if it is set; None for any number."""
        stream = sys.stderr if self.as_json else sys.stdout
        given = os.environ.get("COLUMNS", "")
        if not (given.isdecimal() and int(given)) and not stream.isatty():
            return None
        return max(20, shutil.get_terminal_size().columns)

    @property
    def can_draw(self) -> bool:
        """Whether text goes to a terminal that shows Braille, of which small pictures are made."""
        if self.as_json or not sys.stdout.isatty() or os.environ.get("TERM") in _PLAIN_TERMINALS:
            return False
        try:
            "\u28ff".encode(sys.stdout.encoding)
        except UnicodeEncodeError:
            return False
        return True

    def say(self, text: str) -> None:
        """Print a line of text, or several."""
        self.erase()
        text = "\n".join(map(escape, text.split("\n")))
        print(text, file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def write(self, text: str) -> None:
        """Print text without an end of line, such as a part of a generated one. It may have line ends and tabs."""
        self.erase()
        print(_escape_controls(text), end="", file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def warn(self, text: str) -> None:
        """Print a line to standard error, apart from the result."""
        self.erase()
        print(escape(text), file=sys.stderr, flush=True)

    def result(self, fields: dict[str, Any]) -> None:
        """Write the result as JSON; do nothing without `--json`."""
        self.erase()
        self.has_result = True
        if self.as_json:
            text = json.dumps(fields, ensure_ascii=False)
            print(_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text), flush=True)


def _escape_controls(text: str) -> str:
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def job_state(job: jobs_pb2.Job) -> str:
    """Return a job's state for people: a running one that lacks workers or the optimizer is `waiting`."""
    from services.jobs.fields import state_name

    if job.pausing:
        return "pausing"
    return "waiting" if job.waiting and not job.position else state_name(job)


def job_phase(job: jobs_pb2.Job) -> str:
    """Return what a running job does, as in "training" or "evaluating, 12 of 40 batches"."""
    if job.evaluation_batches:
        batches = counted(job.evaluation_batches, "batch", "batches")
        return f"evaluating, {job.evaluated_batches} of {batches}"
    return _PHASES.get(job.phase, job.phase)


def claim_lines(claims: list[dict[str, Any]]) -> str:
    """Return who says what of a job, as text: the claim that the job goes by, and how the others differ from it."""
    facts = [
        {**each["fingerprint"], "layout": each["layout_hash"][:12], "elements": each["elements"]}
        for each in claims
    ]
    shown = []
    for each, said in zip(claims, facts, strict=True):
        differing = {key: value for key, value in said.items() if facts[0].get(key, value) != value}
        what = ", ".join(f"{key} {value}" for key, value in (differing or said).items())
        shown.append(f"{', '.join(each['workers'])} ({each['standing']}): {what}")
    return "; ".join(shown)


def job_line(job: jobs_pb2.Job) -> str:
    """Return a job as one line of text."""
    parts = [f"{job.id}  {job_state(job):<9}  step {job.step}/{job.steps}"]
    if job.HasField("loss"):
        parts.append(f"loss {job.loss:.4f}")
    if job.HasField("validation_loss"):
        parts.append(f"validation loss {job.validation_loss:.4f} at step {job.validation_step}")
    if job.HasField("seconds_left"):
        parts.append(time_left(job))
    parts.append(job.name)
    if job.HasField("start"):
        parts.append(f"from {job.start.job}:{job.start.step}")
    if job.owner:
        parts.append(f"by {job.owner}")
    if job.priority:
        parts.append(f"priority {job.priority}")
    if job.skipped:
        parts.append(f"(skipped {job.skipped})")
    if job.excluded:
        parts.append(f"(faulty: {', '.join(each.worker for each in job.excluded)})")
    if job.detail:
        parts.append(f"({job.detail})")
    return "  ".join(parts)


def time_left(job: jobs_pb2.Job) -> str:
    """Return the time that a job's further steps and evaluations take, as in "1 h 12 min left"; "" if unknown."""
    return f"{spell_duration(job.seconds_left)} left" if job.HasField("seconds_left") else ""


def clock(unix_seconds: float) -> str:
    """Return the local time of day, as HH:MM:SS."""
    return time.strftime("%H:%M:%S", time.localtime(unix_seconds))
