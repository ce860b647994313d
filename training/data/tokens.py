"""Micro-batches and held-out windows of a tokenized text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.errors import Refused
from training.data.dataset import Batch
from training.seeds import make_generator

TRAINING_SHARE = 0.9
"""Share of the tokens, from the start, that is trained on; the rest is held out."""


class TokenDataset:
    """Random windows of the first 90 % of a text for training, consecutive windows of the rest for evaluation.

    Args:
        ids: token ids of the text.
        seed: seed of the job.
        batch_size: number of windows of a micro-batch.
        validation_batch_size: number of windows of a held-out batch.
        tokens: number of tokens of a window.

    Raises:
        Refused: the text is too short for one window of either part.
    """

    def __init__(
        self,
        ids: npt.NDArray[np.uint32],
        *,
        seed: int,
        batch_size: int,
        validation_batch_size: int,
        tokens: int,
    ) -> None:
        split = int(TRAINING_SHARE * ids.size)
        self._training, self._held_out = ids[:split], ids[split:]
        if self._training.size <= tokens or self._held_out.size < 2:
            raise Refused(
                f"training_config.data_path: the text has {ids.size} tokens, {split} of them for training, expected "
                f"more than {tokens} of those; use a longer text or a smaller max_sequence_length"
            )
        self._seed = seed
        self._batch_size = batch_size
        self._validation_batch_size = validation_batch_size
        self._tokens = tokens
        self.rows_per_micro_batch = batch_size * tokens
        windows = -(-(self._held_out.size - 1) // tokens)
        self.evaluation_batches = -(-windows // validation_batch_size)

    def micro_batch(self, step: int, index: int) -> Batch:
        """Return `batch_size` windows of the training part that start anywhere, drawn with replacement."""
        draws = make_generator(self._seed, "micro-batch", step, index).random_raw(self._batch_size)
        starts = (draws % np.uint64(self._training.size - self._tokens)).astype(np.int64)
        positions = starts[:, None] + np.arange(self._tokens)
        return Batch(self._training[positions], self._training[positions + 1], self.rows_per_micro_batch)

    def evaluation_batch(self, index: int) -> Batch:
        """Return the next `validation_batch_size` windows; id 0 fills the last batch and does not count.

        Raises:
            IndexError: there is no such batch.
        """
        if not 0 <= index < self.evaluation_batches:
            raise IndexError(f"held-out batch {index} of {self.evaluation_batches}")
        shape = (self._validation_batch_size, self._tokens)
        start = index * shape[0] * shape[1]
        part = self._held_out[start : start + shape[0] * shape[1] + 1]
        filled = np.zeros(shape[0] * shape[1] + 1, np.uint32)
        filled[: part.size] = part
        return Batch(filled[:-1].reshape(shape), filled[1:].reshape(shape), part.size - 1)
