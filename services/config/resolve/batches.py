"""Sizes of a step's batches, from tt-train's keys and those of JAX trainers."""

from __future__ import annotations

from dataclasses import dataclass

from services.config.device import DeviceConfig
from services.config.sections import TrainingSection
from services.errors import Refused


@dataclass(frozen=True)
class Batches:
    """Sizes of a job's batches, in sequences.

    Attributes:
        batch_size: sequences of a micro-batch.
        gradient_accumulation_steps: micro-batches per step of each worker.
        validation_batch_size: sequences of a validation batch.
    """

    batch_size: int
    gradient_accumulation_steps: int
    validation_batch_size: int


def resolve_batches(training: TrainingSection, device: DeviceConfig, notices: list[str]) -> Batches:
    """Return the sizes of the batches that a config describes.

    Args:
        training: the `training_config` section.
        device: the mesh, whose data parallel devices share a batch.
        notices: list to which a line is added for each size that differs from what the config says.

    Raises:
        Refused: `micro_batch_size` contradicts the other sizes.
    """
    size, accumulation = _micro_batches(training, notices)
    return Batches(size, accumulation, _validation_batch_size(training, size, device, notices))


def _micro_batches(training: TrainingSection, notices: list[str]) -> tuple[int, int]:
    """Return the sequences of a micro-batch, and how many of them each worker computes for a step."""
    size, accumulation, micro = (
        training.batch_size,
        training.gradient_accumulation_steps,
        training.micro_batch_size,
    )
    if micro is None or micro == size:
        return size, accumulation
    if "batch_size" not in training.model_fields_set:
        return micro, accumulation
    field = f"training_config.micro_batch_size: {micro} given with batch_size {size}"
    if "gradient_accumulation_steps" in training.model_fields_set:
        raise Refused(
            f"{field} and gradient_accumulation_steps {accumulation}, expected two of the three; remove "
            f"micro_batch_size: a worker's step then has {size} x {accumulation} sequences"
        )
    if size % micro:
        raise Refused(f"{field}, expected a divisor of it; write for example micro_batch_size: {size}")
    notices.append(
        f"training_config.micro_batch_size: {micro} splits the batch of {size}: the job has batch_size {micro} and "
        f"gradient_accumulation_steps {size // micro}"
    )
    return micro, size // micro


def _validation_batch_size(
    training: TrainingSection, batch_size: int, device: DeviceConfig, notices: list[str]
) -> int:
    """Return the given size, or tt-train's half of the batch, as a multiple of the data parallel devices.

    A given size is rounded up: the validation loss is a mean over all tokens, whatever the size of the batches.
    """
    split, given = device.data_parallel_size, training.validation_batch_size
    if given is None:
        return max(batch_size // 2 // split, 1) * split
    rounded = -(-given // split) * split
    if rounded != given:
        notices.append(
            f"training_config.validation_batch_size: {given} is rounded up to {rounded}, a multiple of the {split} "
            "devices that share a batch; the validation loss does not depend on it"
        )
    return rounded
