"""Samples and tokens per second of a worker."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from services.config.job import JobConfig


class PerformanceMeter:
    """Samples and tokens per second over the newest steps.

    n time stamps span n - 1 steps, so the samples of the first one don't count.

    Args:
        config: config of the job, with its batch size, micro-batches per step and tokens per sequence.
        window_size: number of time stamps that are kept.
        clock: monotonic clock in seconds.
    """

    def __init__(
        self, config: JobConfig, window_size: int = 10, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._batch_size = config.batch_size
        self._micro_batches = config.gradient_accumulation_steps
        self._tokens_per_sample: int = getattr(config.model, "max_sequence_length", 1)
        self._clock = clock
        self._steps: deque[tuple[float, int]] = deque(maxlen=window_size)

    def step(self, micro_batches: int | None = None) -> None:
        """Count a step that has just ended.

        Args:
            micro_batches: number of its micro-batches; None for the job's `gradient_accumulation_steps`.
        """
        count = self._micro_batches if micro_batches is None else micro_batches
        self._steps.append((self._clock(), count * self._batch_size))

    def get_metrics(self) -> tuple[float, float]:
        """Return samples/s and tokens/s; (0, 0) before two steps have ended at different times."""
        if len(self._steps) < 2:
            return 0.0, 0.0
        seconds = self._steps[-1][0] - self._steps[0][0]
        if seconds <= 0:
            return 0.0, 0.0
        samples_per_second = sum(samples for _, samples in list(self._steps)[1:]) / seconds
        return samples_per_second, samples_per_second * self._tokens_per_sample
