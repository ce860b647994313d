"""The fault_cost figure: its interval, and a short measurement of real clusters."""

from __future__ import annotations

import os
import random
import signal
import threading

import pytest

from benchmarks.figures import fault_cost
from benchmarks.harness.job_settings import ROOT


def test_the_geometric_mean_of_ratios_and_of_their_inverses_agree() -> None:
    assert fault_cost.geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)


def test_the_interval_contains_the_true_ratio_at_its_confidence() -> None:
    draw = random.Random(1)
    samples = [[1.01 * draw.lognormvariate(0.0, 0.02) for _ in range(30)] for _ in range(20)]
    found = [fault_cost.interval([[ratio] for ratio in sample]) for sample in samples]
    assert sum(low <= 1.01 <= high for low, high in found) >= 16
    assert max(high - low for low, high in found) < 0.02


def test_correlation_within_a_round_widens_the_interval() -> None:
    pairs = [0.97, 1.0, 1.03, 0.99, 1.02, 1.04]
    alike = fault_cost.interval([[ratio] * 4 for ratio in pairs])
    apart = fault_cost.interval([pairs[at:] + pairs[:at] for at in range(6)])
    assert alike[1] - alike[0] > 0.02
    assert apart[1] - apart[0] < 1e-9


def test_the_measured_fraction_is_the_recommended_one() -> None:
    recommended = f"verify_fraction: {fault_cost.VERIFY_FRACTION} "
    assert recommended in (ROOT / "docs" / "operate" / "hardware.md").read_text()


@pytest.mark.slow
def test_a_short_measurement_counts_all_daemons(capsys: pytest.CaptureFixture[str]) -> None:
    fault_cost.run(rounds=1, pairs=2, block_steps=2)
    printed = capsys.readouterr().out
    assert printed.startswith("fault_cost: ") and "of 2 pairs of blocks of 2 steps, in 1 rounds" in printed
    assert all(f"{name} " in printed for name in ("optimizer", "aggregator", "worker-1", "worker-2"))


@pytest.mark.slow
def test_a_worker_that_the_machine_slows_down_still_pauses_at_each_step() -> None:
    with fault_cost.Cluster("fault_cost-slowed", heartbeat_seconds=10.0, verify_fraction=0.0) as cluster:
        slow = cluster.processes["worker-2"].pid
        is_over = threading.Event()

        def slow_down() -> None:
            while not is_over.is_set():
                os.kill(slow, signal.SIGSTOP)
                is_over.wait(0.5)
                os.kill(slow, signal.SIGCONT)
                is_over.wait(0.05)

        brake = threading.Thread(target=slow_down)
        brake.start()
        try:
            cluster.gate.warm_up(4)
            for _ in range(6):
                cluster.gate.steps(1)
        finally:
            is_over.set()
            brake.join()
