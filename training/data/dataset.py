"""What a training step needs of data."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy.typing as npt


class Batch(NamedTuple):
    """Inputs and targets of one forward pass.

    Attributes:
        inputs: token ids uint32 [sequences, tokens], or features float32 [samples, features].
        targets: the following ids, of the same shape, or float32 [samples, targets].
        rows: how many rows of loss (sequence by sequence) count; what comes after them only fills up the batch.
    """

    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    rows: int


class Dataset(Protocol):
    """Micro-batches to train on, and held-out batches.

    Attributes:
        rows_per_micro_batch: rows of loss of a micro-batch: tokens, or samples.
        evaluation_batches: number of held-out batches.
    """

    rows_per_micro_batch: int
    evaluation_batches: int

    def micro_batch(self, step: int, index: int) -> Batch:
        """Micro-batch `index` of a step; it follows from (job seed, step, index) alone."""
        ...

    def evaluation_batch(self, index: int) -> Batch:
        """Held-out batch `index`; over all of them every held-out row counts once."""
        ...
