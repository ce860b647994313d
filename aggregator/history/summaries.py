"""Summaries of steps in memory: those of single steps, of blocks as they are stored, and what is made of several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.history.columns import FIGURES, GENERATION, STEP_RECORD, WAITED_FOR, Records


@dataclass(frozen=True)
class Summaries:
    """Summaries in the order of steps; the first axis of every array is theirs, the second that of `FIGURES`.

    Attributes:
        last: place of the last step.
        generation: its generation.
        waited_for: number of the worker that most steps waited for; 0 for none.
        count: number of steps that have a figure.
        low: its smallest value; NaN if no step has it.
        high: its largest value.
        mean: its mean.
    """

    last: NDArray[np.int64]
    generation: NDArray[np.uint32]
    waited_for: NDArray[np.uint16]
    count: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    mean: NDArray[np.float64]

    @classmethod
    def none(cls) -> Summaries:
        """Return no summaries."""
        return cls.of_steps(np.zeros(0, STEP_RECORD), np.zeros(0, np.int64))

    @classmethod
    def of_steps(cls, records: Records, places: NDArray[np.int64]) -> Summaries:
        """Return a summary for each step, from its record and its place."""
        values = np.stack([records[name].astype(np.float64) for name in FIGURES], axis=1)
        known = (~np.isnan(values)).astype(np.int64)
        return cls(places, records[GENERATION], records[WAITED_FOR], known, values, values, values)

    @classmethod
    def of_blocks(cls, records: Records, places: NDArray[np.int64]) -> Summaries:
        """Return stored summaries, from their records and the places of their last steps."""
        stored = (records[name] for name in (GENERATION, WAITED_FOR, "count", "low", "high", "mean"))
        generation, waited_for, count, low, high, mean = stored
        return cls(places, generation, waited_for, count.astype(np.int64), low, high, mean)

    def __len__(self) -> int:
        return len(self.last)

    def __getitem__(self, some: slice) -> Summaries:
        return Summaries(*(each[some] for each in self._arrays))

    def __add__(self, later: Summaries) -> Summaries:
        """Return these and later ones."""
        pairs = zip(self._arrays, later._arrays, strict=True)
        return Summaries(*(np.concatenate(pair) for pair in pairs))

    @property
    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return (
            self.last,
            self.generation,
            self.waited_for,
            self.count,
            self.low,
            self.high,
            self.mean,
        )

    def merge(self, groups: NDArray[np.int64]) -> Summaries:
        """Return one summary for each run of equal numbers in `groups`, which has a number for each of these."""
        if not len(self):
            return self
        starts = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
        ends = np.append(starts[1:], len(groups))
        count = np.add.reduceat(self.count, starts)
        with np.errstate(
            all="ignore"
        ):  # infinite losses have no mean, and figures that no step has none either
            total = np.add.reduceat(np.where(self.count > 0, self.mean * self.count, 0.0), starts)
            mean = np.where(count > 0, total / count, np.nan)
            low = np.fmin.reduceat(self.low, starts)
            high = np.fmax.reduceat(self.high, starts)
        most = [self._most_waited_for(start, end) for start, end in zip(starts, ends, strict=True)]
        return Summaries(
            self.last[ends - 1],
            self.generation[ends - 1],
            np.array(most, np.uint16),
            count,
            low,
            high,
            mean,
        )

    def _most_waited_for(self, start: int, end: int) -> int:
        numbers = self.waited_for[start:end]
        steps = self.count[start:end].max(axis=1)
        votes = np.bincount(numbers, weights=steps * (numbers > 0))
        return int(votes.argmax())

    def fill(self, records: Records, indices: NDArray[np.int64]) -> None:
        """Put each into the record at its index."""
        for name in (GENERATION, WAITED_FOR, "count", "low", "high", "mean"):
            records[name][indices] = getattr(self, name)
