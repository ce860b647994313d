"""Columns of the history, and how a step's record and a summary's have them on disk. All numbers are little-endian."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protos.jobs_pb2 import JobEvent

Records: TypeAlias = NDArray[np.void]
"""Records of one of the types below, one-dimensional."""

_DOUBLES = ("unix_seconds", "loss", "grad_norm", "learning_rate", "validation_loss")
"""Figures with all digits that events have."""
_FLOATS = (
    "step_seconds",
    "compute_seconds",
    "wire_seconds",
    "update_seconds",
    "wait_seconds",
    "tokens_per_second",
    "mfu",
)
FIGURES = (*_DOUBLES, *_FLOATS)
"""Columns of numbers that have a mean, in the order of records."""

STEP, GENERATION, WAITED_FOR = "step", "generation", "waited_for"
COLUMNS = (
    STEP,
    "unix_seconds",
    GENERATION,
    "loss",
    "grad_norm",
    "learning_rate",
    *_FLOATS,
    "validation_loss",
    WAITED_FOR,
)
"""All columns, in the order of an answer."""

STEP_RECORD = np.dtype(
    [
        ("checksum", "<u4"),
        (GENERATION, "<u4"),
        *((name, "<f8") for name in _DOUBLES),
        *((name, "<f4") for name in _FLOATS),
        (WAITED_FOR, "<u2"),
        ("reserved", "<u2"),
    ]
)
"""A step, or the evaluation before the first one. What is unknown is NaN, and a worker a line's number in `names`."""

SUMMARY_RECORD = np.dtype(
    [
        ("checksum", "<u4"),
        (GENERATION, "<u4"),
        (WAITED_FOR, "<u2"),
        ("reserved", "<u2", 3),
        ("count", "<u2", len(FIGURES)),
        ("low", "<f8", len(FIGURES)),
        ("high", "<f8", len(FIGURES)),
        ("mean", "<f8", len(FIGURES)),
    ]
)
"""A block of steps: for each figure, the number of steps that have it, and their smallest, largest and mean value."""


def sign(records: Records) -> None:
    """Put its checksum into each record."""
    records["checksum"] = _checksums(records)


def are_whole(records: Records) -> NDArray[np.bool_]:
    """Return which records are as they were signed. One that was never written, all zeros, is not."""
    return np.asarray(records["checksum"] == _checksums(records))


def _checksums(records: Records) -> NDArray[np.uint32]:
    """Return the complement of the sum of each record's words but the first, the checksum's own."""
    words = np.ascontiguousarray(records).view("<u4").reshape(len(records), -1)
    sums: NDArray[np.uint32] = words[:, 1:].sum(axis=1, dtype=np.uint32)
    return ~sums


def unknown_step() -> Records:
    """Return a record of which nothing is known."""
    record = np.zeros(1, STEP_RECORD)
    for name in FIGURES:
        record[name] = np.nan
    return record


def unknown_blocks(count: int) -> Records:
    """Return some summaries of which nothing is known."""
    records = np.zeros(count, SUMMARY_RECORD)
    for name in ("low", "high", "mean"):
        records[name] = np.nan
    return records


def figures_of_event(event: JobEvent) -> dict[str, float]:
    """Return the figures of an event about a step or an evaluation; what is unknown is left out."""
    job = event.job
    if event.kind == "evaluation":
        return {"validation_loss": job.validation_loss}
    found: dict[str, Any] = {
        "unix_seconds": event.seconds,
        "loss": job.loss if job.HasField("loss") else None,
        "grad_norm": event.grad_norm if event.HasField("grad_norm") else None,
        "learning_rate": event.learning_rate if event.HasField("learning_rate") else None,
        "step_seconds": event.step_seconds if event.HasField("step_seconds") else None,
        "tokens_per_second": job.tokens_per_second or None,
        "mfu": job.mfu if job.HasField("mfu") else None,
    }
    if event.HasField("split"):
        for part in ("compute_seconds", "wire_seconds", "update_seconds", "wait_seconds"):
            found[part] = getattr(event.split, part)
    return {name: float(value) for name, value in found.items() if value is not None}
