"""memory_efficient: memory that recomputing blocks saves, and the time it costs, with 12 blocks.

Both come from the worker's own `TrainingStep` on the emulator. Activation memory is the peak of numpy's
allocations during a pass, counted from the pass's start. Times come from other passes, without that counting.
"""

from __future__ import annotations

import time
import tracemalloc

import numpy as np

from benchmarks.harness.job_settings import load_setting, mesh_of
from benchmarks.harness.report import median, milliseconds, report
from services.config.job import JobConfig
from tests.support.micro_batch import run_micro_batch
from training.step import TrainingStep

MEMORY_BOUND = 0.35
TIME_BOUND = 1.4
ROUNDS = 9
WARM_UP = 2
RUNNERS = ("memory_efficient", "default")


def run() -> bool:
    """Measure peaks, then times in turns."""
    configs = [_config(runner) for runner in RUNNERS]
    with mesh_of(configs[0]) as mesh:
        steps = []
        for config in configs:
            step = TrainingStep(config, mesh)
            weights = step.initial_weights()
            for index, entry in enumerate(step.layout.entries):
                step.load(index, weights[entry.offset : entry.stop])
            steps.append(step)
        gradient = np.empty(steps[0].layout.elements, np.float32)

        def work(step: TrainingStep) -> float:
            started = time.perf_counter()
            run_micro_batch(step, 0, 0, gradient)
            return time.perf_counter() - started

        def peak(step: TrainingStep) -> int:
            tracemalloc.start()
            try:
                work(step)
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        peaks = [peak(step) for step in steps]
        seconds: list[list[float]] = [[], []]
        for number in range(WARM_UP + ROUNDS):
            for step, taken in zip(steps, seconds, strict=True):
                one = work(step)
                if number >= WARM_UP:
                    taken.append(one)
        for step in steps:
            step.close()
    memory = report(
        "memory_efficient",
        peaks[0] / peaks[1],
        MEMORY_BOUND,
        *(
            f"{runner}: {at_peak / 2**20:.1f} MiB at the peak"
            for runner, at_peak in zip(RUNNERS, peaks, strict=True)
        ),
    )
    duration = report(
        "memory_efficient_time",
        median(seconds[0]) / median(seconds[1]),
        TIME_BOUND,
        *(f"{runner}: {milliseconds(taken)}" for runner, taken in zip(RUNNERS, seconds, strict=True)),
    )
    return memory and duration


def _config(runner: str) -> JobConfig:
    """Return the setting's job with 12 blocks of the width of nanoGPT's larger Shakespeare model."""
    return load_setting(
        "model_config=model_configs/nanogpt_char.yaml",
        "transformer_config.num_blocks=12",
        f"transformer_config.runner_type={runner}",
        "batch_size=4",
        "validation_batch_size=4",
    )
