"""Workers that a step is too small for, and how to split it so that all of them compute."""

from __future__ import annotations

from math import gcd

from services.config.field_types import MOST_MICRO_BATCHES
from services.config.job import JobConfig
from services.config.models import ExternalConfig, RegressionConfig
from services.printable import counted

_MOST_CHANGE = 0.25
"""Largest change of a step's sequences, as a share of them, for which all workers are used."""


def advise_on_idle_workers(config: JobConfig, workers: int) -> str | None:
    """Return one line if a step has fewer micro-batches than there are workers; else None.

    The line says how many workers compute, and which settings use all of them. These keep the sequences of a step if
    its batches can be divided so. Else they name the nearest number, or, if that is far off, use as many workers as
    the present sequences allow. A row of workers that have a pipeline's stages counts as one.

    Args:
        config: config of the job.
        workers: number of worker daemons.
    """
    have, holders = config.micro_batches, config.count_holders(workers)
    if have >= holders:
        return None
    noun = "rows of workers" if config.stages > 1 else "workers"
    computes = "computes" if have == 1 else "compute"
    line = f"a step has {counted(have, 'micro-batch', 'micro-batches')}, so {have} of {holders} {noun} {computes}"
    parts, size = _divide_batch(config, holders)
    if have * parts > MOST_MICRO_BATCHES:
        return line
    used = min(have * parts, holders)
    settings = f"gradient_accumulation_steps: {config.gradient_accumulation_steps * parts}"
    if size != config.batch_size:
        settings += f" with batch_size: {size}"
    things, windows = (
        ("samples", "samples")
        if isinstance(config.model, RegressionConfig | ExternalConfig)
        else ("sequences", "windows")
    )
    before, after = config.sequences_per_step, have * parts * size
    kept = f"as many {things} a step" if before == after else f"{after} {things} a step in place of {before}"
    return f"{line}; {settings} uses {'all ' if used == holders else ''}{used} ({kept}, but other {windows} are drawn)"


def _divide_batch(config: JobConfig, holders: int) -> tuple[int, int]:
    """Return into how many parts each micro-batch should be divided, and the sequences of a part."""
    least, batch = config.device.data_parallel_size, config.batch_size
    parts = holders // gcd(config.micro_batches, holders)  # so that each worker has as much to do
    size = least * max(1, round(batch / (parts * least)))
    if batch > least and abs(parts * size - batch) > _MOST_CHANGE * batch:
        return batch // least, least
    return parts, size
