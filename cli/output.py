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
from services.protocol.activities import efficiency

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


def state_name(job: jobs_pb2.Job) -> str:
    """Return `queued`, `running`, `paused`, `succeeded`, `failed` or `cancelled`."""
    from protos import jobs_pb2

    return str(jobs_pb2.JobState.Name(job.state)).lower()


def job_state(job: jobs_pb2.Job) -> str:
    """Return a job's state for people: a running one that lacks workers or the optimizer is `waiting`."""
    if job.pausing:
        return "pausing"
    return "waiting" if job.waiting and not job.position else state_name(job)


def job_phase(job: jobs_pb2.Job) -> str:
    """Return what a running job does, as in "training" or "evaluating, 12 of 40 batches"."""
    if job.evaluation_batches:
        batches = counted(job.evaluation_batches, "batch", "batches")
        return f"evaluating, {job.evaluated_batches} of {batches}"
    return _PHASES.get(job.phase, job.phase)


def job_fields(job: jobs_pb2.Job) -> dict[str, Any]:
    """Return a job as JSON values; None stands for what isn't known yet."""
    return {
        "job": job.id,
        "name": job.name,
        "owner": job.owner or None,
        "state": state_name(job),
        "phase": job.phase or None,
        "started_from": f"{job.start.job}:{job.start.step}" if job.HasField("start") else None,
        "detail": job.detail or None,
        "priority": job.priority,
        "pausing": job.pausing,
        "position": job.position or None,
        "estimated_start_seconds": job.estimated_start_seconds
        if job.HasField("estimated_start_seconds")
        else None,
        "min_workers": job.min_workers or None,
        "max_workers": job.max_workers or None,
        "waiting": job.waiting or None,
        "workers": job.workers,
        "efficiency": efficiency(job.worker_seconds),
        "worker_seconds": dict(sorted(job.worker_seconds.items())),
        "evaluated_batches": job.evaluated_batches if job.evaluation_batches else None,
        "evaluation_batches": job.evaluation_batches or None,
        "step": job.step,
        "steps": job.steps,
        "loss": job.loss if job.HasField("loss") else None,
        "validation_loss": job.validation_loss if job.HasField("validation_loss") else None,
        "validation_step": job.validation_step if job.HasField("validation_loss") else None,
        "checkpoint": job.checkpoint or None,
        "checkpoint_step": job.checkpoint_step if job.checkpoint else None,
        "model_sha256": job.model_sha256 or None,
        "parameters": job.parameters or None,
        "flops_per_token": job.flops_per_token or None,
        "tokens_per_second": job.tokens_per_second,
        "samples_per_second": job.samples_per_second or None,
        "mfu": job.mfu if job.HasField("mfu") else None,
        "seconds_left": job.seconds_left if job.HasField("seconds_left") else None,
        "skipped": job.skipped or None,
        "excluded": {each.worker: each.reason for each in job.excluded} or None,
        "claims": [
            {
                "workers": [one.worker for one in each.claimants],
                "standing": _standing(each, own=each == job.claims[0]),
                "fingerprint": dict(sorted(each.fingerprint.items())),
                "layout_hash": each.layout_hash,
                "elements": each.elements,
            }
            for each in job.claims
        ]
        or None,
        "generation": job.generation,
        "submitted_seconds": job.submitted_seconds or None,
        "started_seconds": job.started_seconds or None,
        "ended_seconds": job.ended_seconds or None,
    }


def _standing(claim: jobs_pb2.Claim, *, own: bool) -> str:
    """Return what a claim means for its workers: whether the job goes by it, and for how long."""
    if own:
        return "bound" if claim.bound else "taken"
    return "contends" if claim.contends else "differs"


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
