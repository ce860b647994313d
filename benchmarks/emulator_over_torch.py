"""emulator_over_torch: forward and backward of the setting on the emulator, against plain PyTorch, one thread each.

Ours is the worker's own `TrainingStep.micro_batch`, gradients read back included; its peer is forward, loss, backward.
"""

from __future__ import annotations

import subprocess
import time

import numpy as np

from benchmarks.peer import peer_command
from benchmarks.report import median, milliseconds, report
from benchmarks.setting import load_setting, mesh_of, peer_model
from worker.step import TrainingStep

NAME = "emulator_over_torch"
BOUND = 2.0
ROUNDS = 25
PASSES = 4
"""Passes of one side before the other has its turn; the fastest of them is the round's: others share the machine."""
WARM_UP = 3


def run() -> bool:
    """Measure in rounds, ours and the peer's by turns."""
    config = load_setting()
    config = config.model_copy(update={"batch_size": config.sequences_per_step, "num_workers": 1})
    with mesh_of(config) as mesh:
        step = TrainingStep(config, mesh)
        for index, values in enumerate(np.split(step.initial_weights(), _bounds(step))):
            step.load(index, values)
        gradient = np.empty(step.layout.elements, np.float32)
        vocabulary = step.layout.entries[0].shape[0]
        setting = {"model": peer_model(config, vocabulary), "sequences": config.batch_size}
        peer = subprocess.Popen(
            peer_command("time", setting), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert peer.stdin is not None and peer.stdout is not None

        def ours(number: int) -> float:
            started = time.perf_counter()
            step.micro_batch(number, 0, gradient, lambda offset: None)
            return time.perf_counter() - started

        def peers() -> float:
            assert peer.stdin is not None and peer.stdout is not None
            print(file=peer.stdin, flush=True)
            return float(peer.stdout.readline())

        with peer:
            measured: list[float] = []
            expected: list[float] = []
            for number in range(WARM_UP + ROUNDS):
                measured.append(min(ours(number) for _ in range(PASSES)))
                expected.append(min(peers() for _ in range(PASSES)))
            peer.stdin.close()
        step.close()
    measured, expected = measured[WARM_UP:], expected[WARM_UP:]
    return report(
        NAME,
        median(measured) / median(expected),
        BOUND,
        f"emulator: {milliseconds(measured)}",
        f"PyTorch:  {milliseconds(expected)}",
    )


def _bounds(step: TrainingStep) -> list[int]:
    """Where the layout's entries but the first start."""
    return [entry.offset for entry in step.layout.entries[1:]]
