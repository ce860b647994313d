"""Checkpoints of a job on the optimizer's disk."""

from __future__ import annotations

from dataclasses import dataclass

from services.config.job import JobConfig
from services.sizing.host_memory import count_state_arrays
from services.sizing.share import FLOAT32_BYTES


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints that a job leaves.

    Attributes:
        bytes_each: size of one, without tokenizer and description.
        written: number that the steps ask for; `checkpoint.every_minutes` may add to it.
        kept: number that is left at the end.
    """

    bytes_each: int
    written: int
    kept: int

    @property
    def most_bytes(self) -> int:
        """Space that they take at most: a new one is complete before an old one is removed."""
        return self.bytes_each * min(self.kept + 1, self.written)


def estimate_checkpoints(config: JobConfig, elements: int) -> Checkpoints:
    """Return size and number of a job's checkpoints.

    Args:
        config: config of the job.
        elements: number of the model's parameters.
    """
    every, steps = config.checkpoint_every, config.steps
    regular = steps // every if every else 0  # besides step 0
    written = 1 + regular + (not every or steps % every > 0)
    return Checkpoints(
        FLOAT32_BYTES * elements * (1 + count_state_arrays(config)), written, _count_kept(config, written)
    )


def _count_kept(config: JobConfig, written: int) -> int:
    """Return how many are left by the rule of `services.checkpoints.prune.surplus_steps`, without listing them."""
    keep_last, keep_every = config.checkpoint.keep_last, config.checkpoint.keep_every
    if not keep_last or written <= keep_last:
        return written
    older = written - keep_last  # steps 0, every, 2 x every, ...
    spans = (older - 1) * config.checkpoint_every // keep_every + 1 if keep_every else 1
    return keep_last + min(older, spans)
