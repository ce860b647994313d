"""Micro-batches and held-out windows of a corpus of token ids."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
import numpy.typing as npt

from services.config.windows import count_training_tokens, count_training_windows
from training.data.dataset import Batch
from training.data.sampling import make_sampler

_FIELD = "training_config.data_path"

Ids = npt.NDArray[np.uint32]


class TokenSource(Protocol):
    """Token ids of one file of a corpus.

    Attributes:
        count: number of ids.
    """

    count: int

    def read(self, start: int, count: int) -> Ids:
        """Return ids `start` to `start + count`, uint32 [count].

        Raises:
            Refused: the file has changed since the job was submitted.
        """
        ...


class TokenArray:
    """Token ids in memory.

    Args:
        ids: uint32 [count].

    Attributes:
        count: number of ids.
    """

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self.count = int(ids.size)

    def read(self, start: int, count: int) -> Ids:
        """Return ids `start` to `start + count`, uint32 [count]."""
        return self._ids[start : start + count]


class TokenDataset:
    """Windows of the first 90 % of each file for training, consecutive windows of the rest for evaluation.

    A window lies within one file. A training window starts at any token.

    Args:
        sources: the files of the corpus.
        weights: weight of each file; None: each window of the corpus is as likely as any other.
        seed: seed of the job.
        batch_size: number of windows of a micro-batch.
        validation_batch_size: number of windows of a held-out batch.
        tokens: number of tokens of a window.
        micro_batches: number of micro-batches of a step.
        replacement: whether training windows are drawn with replacement, or each once an epoch.

    Raises:
        Refused: a file is too short for one window of either part.
    """

    def __init__(
        self,
        sources: Sequence[TokenSource],
        *,
        weights: Sequence[float] | None = None,
        seed: int,
        batch_size: int,
        validation_batch_size: int,
        tokens: int,
        micro_batches: int = 1,
        replacement: bool = True,
    ) -> None:
        windows = [count_training_windows(source.count, tokens, f"{_FIELD}: a file") for source in sources]
        self._sources = sources
        self._batch_size = batch_size
        self._validation_batch_size = validation_batch_size
        self._tokens = tokens
        self._sampler = make_sampler(
            windows,
            weights,
            seed=seed,
            batch_size=batch_size,
            micro_batches=micro_batches,
            replacement=replacement,
        )
        batch_tokens = validation_batch_size * tokens
        self._evaluation_ends = list(
            accumulate(-(-(_held_out(source) - 1) // batch_tokens) for source in sources)
        )
        self.rows_per_micro_batch = batch_size * tokens
        self.evaluation_batches = self._evaluation_ends[-1]

    def micro_batch(self, step: int, index: int) -> Batch:
        """Return `batch_size` windows of the training parts."""
        draws = self._sampler.draw(step, index)
        ids = np.empty((self._batch_size, self._tokens + 1), np.uint32)
        for row, file, start in zip(ids, draws.files.tolist(), draws.windows.tolist(), strict=True):
            row[:] = self._sources[file].read(start, self._tokens + 1)
        return Batch(ids[:, :-1].copy(), ids[:, 1:].copy(), self.rows_per_micro_batch)

    def evaluation_batch(self, index: int) -> Batch:
        """Return the next `validation_batch_size` windows, file after file.

        Id 0 fills the last batch of a file and does not count.

        Raises:
            IndexError: there is no such batch.
        """
        if not 0 <= index < self.evaluation_batches:
            raise IndexError(f"held-out batch {index} of {self.evaluation_batches}")
        file = bisect_right(self._evaluation_ends, index)
        source = self._sources[file]
        first = self._evaluation_ends[file - 1] if file else 0
        shape = (self._validation_batch_size, self._tokens)
        offset = (index - first) * shape[0] * shape[1]
        part = source.read(
            source.count - _held_out(source) + offset,
            min(shape[0] * shape[1] + 1, _held_out(source) - offset),
        )
        filled = np.zeros(shape[0] * shape[1] + 1, np.uint32)
        filled[: part.size] = part
        return Batch(filled[:-1].reshape(shape), filled[1:].reshape(shape), part.size - 1)


def _held_out(source: TokenSource) -> int:
    """Return the number of tokens that are held out, at the end of the file."""
    return source.count - count_training_tokens(source.count)
