"""Curves of jobs: the columns of their histories, smoothed, with the steps at which they have no value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protos.jobs_pb2 import MetricsRows
from services.errors import Failed, Refused
from services.printable import printable_path

Floats = NDArray[np.float64]

MOST_STEPS = 10_000_000
"""Largest number of steps that are read of a job: 160 MB with one column."""
_INFINITE = 1e300
"""Values from here on count as infinite, so that sums of the others are finite."""
SPARSE = ("validation_loss",)
"""Columns that most steps don't have. What they have is connected over the steps between."""


@dataclass(frozen=True)
class Curve:
    """A column of a job.

    Attributes:
        job: the job, for people.
        column: name of the column.
        steps: numbers of the steps.
        values: a value for each, NaN at a gap.
    """

    job: str
    column: str
    steps: Floats
    values: Floats

    @property
    def gaps(self) -> Floats:
        """The steps without a value."""
        return np.asarray(self.steps[np.isnan(self.values)])

    @property
    def is_empty(self) -> bool:
        """Whether no step has a value."""
        return bool(np.isnan(self.values).all())

    def to_json(self) -> dict[str, str | int]:
        """Return what the curve is of, as JSON values."""
        sizes = {"steps": len(self.steps), "gaps": len(self.gaps)}
        return {"job": self.job, "column": self.column, **sizes}


class History:
    """Columns of a job, put together from the parts of an answer.

    Args:
        job: the job, for people.
        columns: names of the columns.
    """

    def __init__(self, job: str, columns: Sequence[str]) -> None:
        self.job = job
        self._parts: dict[str, list[Floats]] = {name: [] for name in ("step", *columns)}
        self._rows = 0

    def add(self, part: MetricsRows) -> None:
        """Add a part.

        Raises:
            Refused: there are too many steps.
            Failed: the part has no such columns, or columns of different lengths.
        """
        found = {
            each.name: np.frombuffer(each.values[: len(each.values) // 8 * 8], "<f8") for each in part.columns
        }
        if not found.keys() >= self._parts.keys() or len({len(found[name]) for name in self._parts}) > 1:
            raise Failed(
                f"Metrics of {self.job}: expected columns {', '.join(self._parts)} of equal lengths, and got others; "
                "check that command and aggregator have the same version"
            )
        self._rows += len(found["step"])
        if self._rows > MOST_STEPS:
            raise Refused(
                f"{self.job}: has more than {MOST_STEPS} steps, expected fewer; choose some with --from and --to"
            )
        for name, parts in self._parts.items():
            parts.append(found[name])

    def find(self, column: str, *, positive: bool = False, smooth_steps: int = 1) -> Curve:
        """Return the curve of a column. Infinite values are gaps.

        Args:
            column: name of the column.
            positive: whether other values are gaps too, which a logarithmic axis has no place for.
            smooth_steps: number of steps up to each of which the curve has the mean.
        """
        steps = np.concatenate([np.zeros(0), *self._parts["step"]])
        values = np.concatenate([np.zeros(0), *self._parts[column]])
        # A job's history may begin with the evaluation before its first step. A NaN among evaluations can't be told
        # from a step without one.
        kept = ~np.isnan(values) if column in SPARSE else steps > 0
        steps, values = steps[kept], values[kept].copy()
        values[~(np.abs(values) < _INFINITE) | (positive & (values <= 0))] = np.nan
        return Curve(self.job, column, steps, smooth(values, smooth_steps))


def smooth(values: Floats, count: int) -> Floats:
    """Return the mean of the last `count` values up to each one. Gaps stay gaps, and count for no mean."""
    if count == 1:
        return values
    known = ~np.isnan(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - count)
    totals, numbers = sums[ends] - sums[starts], counts[ends] - counts[starts]
    return np.where(known, totals / np.maximum(1, numbers), np.nan)


def find_histories(folder: Path) -> list[Path]:
    """Return the histories in a folder: it is one, or the state dir of an aggregator, which has one for each job.

    Raises:
        Refused: it has none, or can't be read.
    """
    try:
        if (folder / "steps").is_file():
            return [folder]
        parent = folder if folder.name == "metrics" else folder / "metrics"
        found = sorted(each for each in parent.iterdir() if (each / "steps").is_file())
    except FileNotFoundError:
        found = []
    except OSError as error:
        raise Refused(
            f"{printable_path(folder)}: can't be read ({error.strerror}); make it readable, or give another folder"
        ) from None
    if not found:
        raise Refused(
            f"{printable_path(folder)}: has no metrics, expected the --state-dir of `tiermesh local` or of an "
            "aggregator, or metrics/JOB in it; a downloaded checkpoint has none: give its job's id"
        )
    return found
