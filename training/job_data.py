"""A job's data: its batches, its tokenizer and the size of its vocabulary; or, of data that is not read, the sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypedDict

import numpy as np

from services.config.job import JobConfig
from services.config.models import RegressionConfig
from services.errors import Refused
from training.data.dataset import Batch, Dataset
from training.data.load import load_corpus
from training.data.regression import RegressionDataset
from training.data.tokenizer import Tokenizer
from training.data.tokens import TokenDataset


class RangeData(Protocol):
    """The data of a job, as a range of its model needs it."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""

    @property
    def rows_per_micro_batch(self) -> int:
        """Rows of loss in one micro-batch: tokens or samples."""

    def micro_batch(self, step: int, index: int) -> Batch:
        """Return micro-batch `index` of a step."""

    def evaluation_batch(self, index: int) -> Batch:
        """Return the `index`-th held-out batch that the job evaluates."""


@dataclass(frozen=True)
class JobData:
    """The data of a job.

    Attributes:
        dataset: micro-batches for training, and held-out batches.
        tokenizer: tokenizer of the texts; None without texts.
        vocabulary: number of tokens; 0 for a model without tokens.
        evaluation_batches: number of held-out batches that the job evaluates.
    """

    dataset: Dataset
    tokenizer: Tokenizer | None
    vocabulary: int
    evaluation_batches: int

    @classmethod
    def open(cls, config: JobConfig, data_dir: Path | None = None) -> JobData:
        """Open the files that a job names.

        Args:
            config: config of the job.
            data_dir: folder of this host that is searched for corpus and tokenizer missing at the job's path.

        Raises:
            Refused: data is missing or unusable, or the tokenizer does not fit the model.
        """
        dataset, tokenizer = _dataset(config, data_dir)
        held_out = dataset.evaluation_batches
        return cls(
            dataset,
            tokenizer,
            _vocabulary(config, tokenizer),
            min(config.validation_batches or held_out, held_out),
        )

    @property
    def rows_per_micro_batch(self) -> int:
        """Rows of loss in one micro-batch: tokens or samples."""
        return self.dataset.rows_per_micro_batch

    def micro_batch(self, step: int, index: int) -> Batch:
        """Return micro-batch `index` of a step."""
        return self.dataset.micro_batch(step, index)

    def evaluation_batch(self, index: int) -> Batch:
        """Return the `index`-th held-out batch that the job evaluates."""
        # A job that evaluates fewer batches than are held out takes them at even distances.
        return self.dataset.evaluation_batch(
            index * self.dataset.evaluation_batches // self.evaluation_batches
        )


@dataclass(frozen=True)
class UnreadData:
    """Batches of a job's sizes, all of whose tokens are 0, for ranges that take neither inputs nor targets.

    Attributes:
        vocabulary: number of tokens.
        batch_size: number of sequences of a micro-batch.
        validation_batch_size: number of sequences of a held-out batch.
        sequence_tokens: number of tokens of a sequence.
    """

    vocabulary: int
    batch_size: int
    validation_batch_size: int
    sequence_tokens: int

    @classmethod
    def of_job(cls, config: JobConfig) -> UnreadData:
        """Return the sizes of a job's batches. Its config must tell the vocabulary."""
        vocabulary, model = config.vocabulary, config.model
        assert vocabulary is not None and not isinstance(model, RegressionConfig)
        return cls(vocabulary, config.batch_size, config.validation_batch_size, model.max_sequence_length)

    @property
    def rows_per_micro_batch(self) -> int:
        """Rows of loss in one micro-batch."""
        return self.batch_size * self.sequence_tokens

    def micro_batch(self, step: int, index: int) -> Batch:
        """Return a batch of the size of each micro-batch."""
        del step, index
        return self._batch(self.batch_size)

    def evaluation_batch(self, index: int) -> Batch:
        """Return a batch of the size of each held-out batch, which is filled up if there are fewer tokens."""
        del index
        return self._batch(self.validation_batch_size)

    def _batch(self, sequences: int) -> Batch:
        ids = np.broadcast_to(np.uint32(0), (sequences, self.sequence_tokens))
        return Batch(ids, ids, ids.size)


class _DatasetSizes(TypedDict):
    """What a dataset of any kind needs to know of a job."""

    seed: int
    batch_size: int
    validation_batch_size: int
    micro_batches: int
    replacement: bool


def _vocabulary(config: JobConfig, tokenizer: Tokenizer | None) -> int:
    """Return the number of tokens: that of the model, else that of the texts' tokenizer or of the token ids, else 0."""
    data, size = config.data, getattr(config.model, "vocab_size", None)
    if data is None:
        return 0
    if tokenizer is not None and any(file.kind == "text" for file in data.files):
        if size is not None and tokenizer.size > size:
            raise Refused(
                f"training_config.tokenizer_path: the tokenizer has {tokenizer.size} tokens, expected at most the "
                f"{size} of the model; use the tokenizer that belongs to it"
            )
        return int(size or tokenizer.size)
    return int(size or data.vocab_size or 0)


def _dataset(config: JobConfig, data_dir: Path | None) -> tuple[Dataset, Tokenizer | None]:
    sizes = _DatasetSizes(
        seed=config.seed,
        batch_size=config.batch_size,
        validation_batch_size=config.validation_batch_size,
        micro_batches=config.micro_batches,
        replacement=config.replacement,
    )
    if isinstance(config.model, RegressionConfig):
        return RegressionDataset(config.model, **sizes), None
    if config.data is None:
        raise ValueError("job config: a language model without data, which JobConfig should have refused")
    sources, tokenizer = load_corpus(config.data, data_dir)
    window = config.model.max_sequence_length
    return TokenDataset(sources, weights=config.data.weights, tokens=window, **sizes), tokenizer
