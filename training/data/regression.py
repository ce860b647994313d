"""Regression data made from the job's seed: targets are a fixed linear function of normal features."""

from __future__ import annotations

import numpy as np

from services.config.models import RegressionConfig
from services.config.windows import count_training_tokens
from services.errors import Refused
from training.data.dataset import Batch
from training.data.sampling import make_sampler
from training.seeds import make_generator


class RegressionDataset:
    """`training_samples` samples, of which the last tenth is held out.

    Features are standard normal. Weights and biases of the function are uniform in [-1, 1). `noise` times a standard
    normal number is added to each target.

    Args:
        config: config of the model.
        seed: seed of the job.
        batch_size: number of samples of a micro-batch.
        validation_batch_size: number of samples of a held-out batch.
        micro_batches: number of micro-batches of a step.
        replacement: whether training samples are drawn with replacement, or each once an epoch.

    Raises:
        Refused: there are too few samples for both parts.
    """

    def __init__(
        self,
        config: RegressionConfig,
        *,
        seed: int,
        batch_size: int,
        validation_batch_size: int,
        micro_batches: int = 1,
        replacement: bool = True,
    ) -> None:
        samples, features, targets = config.training_samples, config.num_features, config.num_targets
        if samples < 10:
            raise Refused(
                f"transformer_config.training_samples: {samples}, expected at least 10, since a tenth is held out; "
                "raise it"
            )
        random = np.random.Generator(make_generator(seed, "regression"))
        weight = 2 * random.random((features, targets), dtype=np.float32) - 1
        bias = 2 * random.random(targets, dtype=np.float32) - 1
        self._inputs = random.standard_normal((samples, features), dtype=np.float32)
        self._targets = self._inputs @ weight
        if config.bias:
            self._targets += bias
        if config.noise:
            self._targets += np.float32(config.noise) * random.standard_normal(
                (samples, targets), dtype=np.float32
            )
        self._training_samples = count_training_tokens(samples)
        self._sampler = make_sampler(
            [self._training_samples],
            seed=seed,
            batch_size=batch_size,
            micro_batches=micro_batches,
            replacement=replacement,
        )
        self._batch_size = batch_size
        self._validation_batch_size = validation_batch_size
        self.rows_per_micro_batch = batch_size
        self.evaluation_batches = -(-(samples - self._training_samples) // validation_batch_size)

    def micro_batch(self, step: int, index: int) -> Batch:
        """Return `batch_size` training samples."""
        rows = self._sampler.draw(step, index).windows
        return Batch(self._inputs[rows], self._targets[rows], self._batch_size)

    def evaluation_batch(self, index: int) -> Batch:
        """Return the next `validation_batch_size` held-out samples; zeros fill the last batch.

        Raises:
            IndexError: there is no such batch.
        """
        if not 0 <= index < self.evaluation_batches:
            raise IndexError(f"held-out batch {index} of {self.evaluation_batches}")
        start = self._training_samples + index * self._validation_batch_size
        inputs = self._inputs[start : start + self._validation_batch_size]
        targets = self._targets[start : start + self._validation_batch_size]
        rows = len(inputs)
        fill = ((0, self._validation_batch_size - rows), (0, 0))
        return Batch(np.pad(inputs, fill), np.pad(targets, fill), rows)
