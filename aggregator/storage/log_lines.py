"""Lines of a job's log about an event: its own, and those that tt-train prints about a step and its scripts read."""

from __future__ import annotations

import math
from typing import NamedTuple

from protos.jobs_pb2 import JobEvent

TIMING = "timing"
"""Kind of the lines about a step that are no event of their own."""
_WORKER_LINE_STEPS = 10
"""Number of steps between two lines about the speed."""


class Line(NamedTuple):
    """A line of a log.

    Attributes:
        kind: kind of the event, or `TIMING`.
        text: the line.
    """

    kind: str
    text: str


def lines_of_event(event: JobEvent) -> list[Line]:
    """Return the event's text and, after a step, the lines that tt-train adds.

    `Full step time 703.141 ms` follows each step with a loss to plot, as tt-train printed it until 2026-04; since then
    the time is in the step's own line. Every tenth step has the line that worker 0 of tt-train's multi-host example
    prints, with the speed of all workers and, unlike there, the loss of all of them.
    """
    job, lines = event.job, [Line(event.kind, event.text)]
    if event.kind != "step" or not job.HasField("loss"):
        return lines
    if event.HasField("step_seconds") and math.isfinite(job.loss):
        lines.append(Line(TIMING, f"Full step time {1000 * event.step_seconds:.3f} ms"))
    if job.step % _WORKER_LINE_STEPS == 0:
        speed = f"Samples/s = {job.samples_per_second:.2f}, Tokens/s = {job.tokens_per_second:.2f}"
        lines.append(Line(TIMING, f"[Worker 0] Step {job.step}/{job.steps}: Loss = {job.loss:.4f}, {speed}"))
    return lines
