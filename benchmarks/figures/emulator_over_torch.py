"""emulator_over_torch: a forward and backward pass on the emulator, over plain PyTorch with as many threads.

The emulator runs the worker's own `TrainingStep`, which includes reading the gradients back. The peer runs
forward, loss and backward.
"""

from __future__ import annotations

import subprocess
import time

import numpy as np

from benchmarks.harness.job_settings import load_nanollama, load_setting, mesh_of, peer_model
from benchmarks.harness.peer import peer_command
from benchmarks.harness.report import median, milliseconds, report
from services.config.job import JobConfig
from tests.support.micro_batch import run_micro_batch
from training.step import TrainingStep

WARM_UP = 3


def nanogpt(threads: int) -> bool:
    """Measure nanoGPT's setting, with all sequences of a step in one pass."""
    name, bound = (
        ("emulator_over_torch", 1.3) if threads == 1 else (f"emulator_over_torch_{threads}_threads", 1.5)
    )
    config = load_setting(f"device_config.threads={threads}")
    config = config.model_copy(update={"batch_size": config.sequences_per_step, "num_workers": 1})
    return _measure(name, bound, config, "nanogpt.py", rounds=25, passes=4)


def nanollama(threads: int) -> bool:
    """Measure nanollama3's setting."""
    config = load_nanollama(f"device_config.threads={threads}")
    name = f"nanollama_over_torch_{threads}_threads"
    return _measure(name, 1.5, config, "nanollama.py", rounds=12, passes=1)


def _measure(name: str, bound: float, config: JobConfig, script: str, *, rounds: int, passes: int) -> bool:
    """Measure both sides in turns. A round's time is the fastest of its passes."""
    with mesh_of(config) as mesh:
        step = TrainingStep(config, mesh)
        weights = step.initial_weights()
        for index, entry in enumerate(step.layout.entries):
            step.load(index, weights[entry.offset : entry.stop])
        gradient = np.empty(step.layout.elements, np.float32)
        setting = {
            "model": peer_model(config, step.layout.entries[0].shape[0]),
            "sequences": config.batch_size,
            "threads": config.device.threads,
        }
        peer = subprocess.Popen(
            peer_command("time", setting, script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

        def ours(number: int) -> float:
            started = time.perf_counter()
            run_micro_batch(step, number, 0, gradient)
            return time.perf_counter() - started

        def peers() -> float:
            assert peer.stdin is not None and peer.stdout is not None
            print(file=peer.stdin, flush=True)
            return float(peer.stdout.readline())

        with peer:
            measured: list[float] = []
            expected: list[float] = []
            for number in range(WARM_UP + rounds):
                measured.append(min(ours(number) for _ in range(passes)))
                expected.append(min(peers() for _ in range(passes)))
            assert peer.stdin is not None
            peer.stdin.close()
        step.close()
    measured, expected = measured[WARM_UP:], expected[WARM_UP:]
    return report(
        name,
        median(measured) / median(expected),
        bound,
        f"emulator: {milliseconds(measured)}",
        f"PyTorch:  {milliseconds(expected)}",
    )
