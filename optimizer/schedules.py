"""The numbers of an update: pure functions of its step and its gradient, so that a resumed job stores none."""

from __future__ import annotations

import math
from collections.abc import Iterable

from services.protocol.plan import Schedule

_WARMUP_LINEAR_LAST_FACTOR = 0.01
"""Share of the learning rate that `warmup_linear` ends at."""


def learning_rate(schedule: Schedule, base: float, step: int) -> float:
    """Return the learning rate of the update from version `step` to version `step + 1`.

    Args:
        schedule: type of the schedule and its settings.
        base: learning rate of the job.
        step: number of earlier updates; beyond `total_steps` the rate keeps its last value.
    """
    if schedule.type == "warmup_linear":
        return base * _warmup_linear_factor(schedule, step + 1)
    if schedule.type == "warmup_cosine":
        return _warmup_cosine(schedule, base, step)
    if schedule.type == "speedrun":
        return _speedrun(schedule, base, step)
    if schedule.type == "step":
        return base * schedule.gamma ** (step // schedule.step_size)
    return base


def first_moment_decay(schedule: Schedule, step: int) -> float | None:
    """Return beta1 of the update from version `step` to `step + 1`; None if the schedule leaves it to the optimizer.

    The speedrun schedule raises or lowers it in equal steps, from `beta1_start` to `beta1_end` (tt-train's `beta1_at`).
    """
    if not schedule.beta1_warmup_steps:
        return None
    share = min(1.0, step / schedule.beta1_warmup_steps)
    return (1.0 - share) * schedule.beta1_start + share * schedule.beta1_end


def gradient_norm(block_sums: Iterable[float]) -> float:
    """Return the global norm from the sums of squares of all blocks; infinite or NaN if an element is not finite.

    `math.fsum` adds without intermediate rounding, so the order of block sums does not matter. The built-in `sum` gives
    different bits in Python 3.11 and 3.12.
    """
    return math.sqrt(math.fsum(block_sums))


def clip_coefficient(norm: float, max_norm: float | None) -> float:
    """Return the factor that brings a gradient of this global norm down to `max_norm`; None: no clipping.

    The 1e-6 is that of torch.nn.utils.clip_grad_norm_.
    """
    return 1.0 if max_norm is None else min(1.0, max_norm / (norm + 1e-6))


def _warmup_linear_factor(schedule: Schedule, update: int) -> float:
    """Return tt-train's factor: linear to 1 at the last warm-up update, then linear to 0.01.

    Args:
        schedule: total and warm-up steps.
        update: number of the update, from 1.
    """
    warmup = schedule.warmup_steps
    if update <= warmup:
        return update / warmup
    progress = min(1.0, (update - warmup) / (schedule.total_steps - warmup))
    return 1.0 - (1.0 - _WARMUP_LINEAR_LAST_FACTOR) * progress


def _warmup_cosine(schedule: Schedule, base: float, step: int) -> float:
    """Return the rate of nanoGPT's `get_lr`: linear to `base`, then half a cosine down to `min_lr`."""
    warmup = schedule.warmup_steps
    if step < warmup:
        return base * (step + 1) / (warmup + 1)
    if step >= schedule.total_steps:
        return schedule.min_lr
    progress = (step - warmup) / (schedule.total_steps - warmup)
    return schedule.min_lr + 0.5 * (1.0 + math.cos(math.pi * progress)) * (base - schedule.min_lr)


def _speedrun(schedule: Schedule, base: float, step: int) -> float:
    """Return the rate of tt-train's `SpeedrunScheduler.lr_at`: linear from 0 to `base`, held, then linear to `min_lr`.

    The first update has rate 0, even without a warm-up. It does not fall if warm-up and hold reach `total_steps`.
    """
    if step <= schedule.warmup_steps:
        return base * step / max(1, schedule.warmup_steps)
    decay_start = schedule.warmup_steps + schedule.hold_steps
    decay_steps = schedule.total_steps - decay_start
    if decay_steps <= 0:
        return base
    progress = min(1.0, max(0, step - decay_start) / decay_steps)
    return base + (schedule.min_lr - base) * progress
