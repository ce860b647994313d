"""The interface of a dataset, for training steps."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy.typing as npt


class Batch(NamedTuple):
    """Inputs and targets of one forward pass.

    Attributes:
        inputs: token ids uint32 [sequences, tokens], or features float32 [samples, features].
        targets: following ids, same shape, or float32 [samples, targets].
        rows: number of rows of loss that count, sequence by sequence; later rows only fill the batch.
    """

    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    rows: int


class Dataset(Protocol):
    """Micro-batches for training, and held-out batches.

    Attributes:
        rows_per_micro_batch: rows of loss in one micro-batch: tokens or samples.
        evaluation_batches: number of held-out batches.
    """

    rows_per_micro_batch: int
    evaluation_batches: int

    def micro_batch(self, step: int, index: int) -> Batch:
        """Return micro-batch `index` of a step; it follows from (job seed, step, index) alone."""
        ...

    def evaluation_batch(self, index: int) -> Batch:
        """Return held-out batch `index`; all of them together contain every held-out row once."""
        ...
