"""Choice of the training windows of each micro-batch: a function of (job seed, step, index) alone.

So any worker can compute any micro-batch, and a job that is restarted goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from training.data.permutation import Integers, Permutation
from training.seeds import make_generator

ROUND = 1 << 16
"""Draws in which every file with a weight has its share, a whole number of draws."""


class Draws(NamedTuple):
    """The windows of a micro-batch.

    Attributes:
        files: index of each window's file, int64 [batch_size].
        windows: number of each window in its file, int64 [batch_size].
    """

    files: npt.NDArray[np.int64]
    windows: npt.NDArray[np.int64]


class Sampler(Protocol):
    """A rule that chooses training windows."""

    def draw(self, step: int, index: int) -> Draws:
        """Return the windows of micro-batch `index` of a step."""
        ...


def make_sampler(
    windows: Sequence[int],
    weights: Sequence[float] | None = None,
    *,
    seed: int,
    batch_size: int,
    micro_batches: int = 1,
    replacement: bool = True,
) -> Sampler:
    """Return the sampler of a job.

    Args:
        windows: number of training windows of each file, at least one.
        weights: weight of each file; None: each window of the corpus is as likely as any other.
        seed: seed of the job.
        batch_size: number of windows of a micro-batch.
        micro_batches: number of micro-batches of a step.
        replacement: whether windows are drawn with replacement, or each once an epoch.
    """
    shares = None if weights is None or len(windows) == 1 else divide_round(weights)
    if replacement:
        return _WithReplacement(windows, shares, seed, batch_size)
    if shares is None:
        return _InEpochs(windows, seed, batch_size, micro_batches)
    return _InEpochsOfFiles(windows, shares, seed, batch_size, micro_batches)


def divide_round(weights: Sequence[float]) -> list[int]:
    """Return how many of `ROUND` draws each file has: one at least, the rest by its weight.

    Fractions are exact, so every machine gets the same numbers.
    """
    exact = [Fraction(weight) for weight in weights]
    rest, total = ROUND - len(exact), sum(exact)
    quotas = [weight * rest / total for weight in exact]
    shares = [1 + int(quota) for quota in quotas]
    by_remainder = sorted(range(len(exact)), key=lambda file: (int(quotas[file]) - quotas[file], file))
    for file in by_remainder[: ROUND - sum(shares)]:
        shares[file] += 1
    return shares


class _WithReplacement:
    """Independent draws. Those from a single file have been the same since the first version."""

    def __init__(
        self, windows: Sequence[int], shares: Sequence[int] | None, seed: int, batch_size: int
    ) -> None:
        self._windows = np.array(windows, np.uint64)
        self._ranges = _Ranges(windows if shares is None else shares)
        self._weighted = shares is not None
        self._seed = seed
        self._batch_size = batch_size

    def draw(self, step: int, index: int) -> Draws:
        generator = make_generator(self._seed, "micro-batch", step, index)
        numbers = generator.random_raw(self._batch_size) % np.uint64(self._ranges.total)
        draws = self._ranges.locate(numbers)
        if not self._weighted:
            return draws
        windows = generator.random_raw(self._batch_size) % self._windows[draws.files]
        return Draws(draws.files, windows.astype(np.int64))


class _InEpochs:
    """Draws of each window once an epoch.

    All micro-batches of all steps draw from one endless row: a permutation of the corpus, then another one, and so on.
    """

    def __init__(self, windows: Sequence[int], seed: int, batch_size: int, micro_batches: int) -> None:
        self._ranges = _Ranges(windows)
        self._seed = seed
        self._batch_size = batch_size
        self._micro_batches = micro_batches

    def draw(self, step: int, index: int) -> Draws:
        first = (step * self._micro_batches + index) * self._batch_size
        offsets = np.arange(self._batch_size, dtype=np.uint64)
        return self._ranges.locate(_take(first, offsets, self._ranges.total, self._seed, "epoch"))


class _InEpochsOfFiles:
    """Draws in which each file has its share, and epochs of its own: each window of a file once an epoch of the file.

    The files take turns, evenly over a round of draws. Every round is the same.
    """

    def __init__(
        self, windows: Sequence[int], shares: Sequence[int], seed: int, batch_size: int, micro_batches: int
    ) -> None:
        self._windows = windows
        self._shares = shares
        self._seed = seed
        self._batch_size = batch_size
        self._micro_batches = micro_batches
        files = np.repeat(np.arange(len(shares)), shares)
        turns = np.concatenate([np.arange(share) for share in shares])
        order = np.argsort((2 * turns + 1) / np.array(shares)[files], kind="stable")
        self._files, self._turns = files[order], turns[order].astype(np.uint64)

    def draw(self, step: int, index: int) -> Draws:
        first = (step * self._micro_batches + index) * self._batch_size
        first_round, start = divmod(first, ROUND)
        rounds, slots = np.divmod(
            np.uint64(start) + np.arange(self._batch_size, dtype=np.uint64), np.uint64(ROUND)
        )
        files = self._files[slots]
        windows = np.empty(self._batch_size, np.int64)
        for file in np.unique(files).tolist():
            chosen = files == file
            share = self._shares[file]
            offsets = rounds[chosen] * np.uint64(share) + self._turns[slots[chosen]]
            windows[chosen] = _take(
                first_round * share, offsets, self._windows[file], self._seed, "epoch of file", file
            )
        return Draws(files, windows)


class _Ranges:
    """Numbers from 0 on, so many for each file: the first file's, then the second file's, and so on.

    Attributes:
        total: number of them all.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        ends = list(accumulate(counts))
        self.total = ends[-1]
        self._ends = np.array(ends, np.uint64)
        self._starts = np.array([0, *ends[:-1]], np.uint64)

    def locate(self, numbers: Integers) -> Draws:
        """Return the file of each number, and its place among the numbers of that file."""
        files = np.searchsorted(self._ends, numbers, side="right")
        return Draws(files, (numbers - self._starts[files]).astype(np.int64))


def _take(first: int, offsets: Integers, size: int, *names: int | str) -> Integers:
    """Return elements of an endless row of permutations of `size` elements, one for each epoch.

    Args:
        first: place in the row, of any size.
        offsets: places to take, counted from there.
        size: number of elements of a permutation.
        *names: what the permutations depend on, besides the epoch's number.
    """
    first_epoch, start = divmod(first, size)
    epochs, places = np.divmod(offsets + np.uint64(start), np.uint64(size))
    elements = np.empty(offsets.size, np.uint64)
    for epoch in np.unique(epochs).tolist():
        chosen = epochs == epoch
        elements[chosen] = Permutation(size, *names, first_epoch + epoch)(places[chosen])
    return elements
