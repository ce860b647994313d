"""Figures of a job's events, by the names of the Prometheus metrics that they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from protos.jobs_pb2 import JobEvent

PointKind = Literal["step", "evaluation"]
"""Kind of event that a point is of."""

_STEP_METRICS = (
    "tiermesh_loss",
    "tiermesh_grad_norm",
    "tiermesh_learning_rate",
    "tiermesh_step_seconds",
    "tiermesh_tokens_per_second",
    "tiermesh_samples_per_second",
    "tiermesh_mfu_ratio",
    "tiermesh_parameters",
    "tiermesh_flops_per_token",
)
_VALIDATION_LOSS = "tiermesh_validation_loss"
METRICS = (*_STEP_METRICS, _VALIDATION_LOSS)
"""Names of all figures, in the order of a table's columns."""


@dataclass(frozen=True)
class Point:
    """The figures of one step, or of the evaluation after it.

    Attributes:
        kind: kind of event.
        step: number of updates so far.
        unix_seconds: Unix time of the event.
        values: figures by name. What is unknown is left out; what diverges may be NaN or infinite.
    """

    kind: PointKind
    step: int
    unix_seconds: float
    values: Mapping[str, float]


def point_of_event(event: JobEvent) -> Point | None:
    """Return the figures of a job's event; None if it is neither a step nor an evaluation."""
    job = event.job
    if event.kind == "evaluation" and job.HasField("validation_loss"):
        values = {_VALIDATION_LOSS: job.validation_loss}
        return Point("evaluation", job.validation_step, event.seconds, values)
    if event.kind != "step":
        return None
    found = {
        "tiermesh_loss": job.loss if job.HasField("loss") else None,
        "tiermesh_grad_norm": event.grad_norm if event.HasField("grad_norm") else None,
        "tiermesh_learning_rate": event.learning_rate if event.HasField("learning_rate") else None,
        "tiermesh_step_seconds": event.step_seconds if event.HasField("step_seconds") else None,
        "tiermesh_tokens_per_second": job.tokens_per_second or None,
        "tiermesh_samples_per_second": job.samples_per_second or None,
        "tiermesh_mfu_ratio": job.mfu if job.HasField("mfu") else None,
        "tiermesh_parameters": job.parameters or None,
        "tiermesh_flops_per_token": job.flops_per_token or None,
    }
    values = {name: value for name, value in found.items() if value is not None}
    return Point("step", job.step, event.seconds, values)
