"""fault_cost: CPU time of a run with fault tolerance, against the same run without it. No fault happens in either.

Two clusters of real daemons train a GPT of 0.8 M parameters, with 3 tiers and 2 workers each. The first has the
standard heartbeat and the `verify_fraction` that the documentation recommends. The second has a heartbeat of 600 s,
which is as good as none, and verifies nothing.

The workers can be paused before a step (peers/stepped_worker.py), so one cluster takes a block of steps while the other
rests. Two blocks, one of each cluster, are a pair. Blocks are short because the machine's speed drifts within seconds.
A block counts the CPU time, user and kernel, of all daemons of its cluster.

After some pairs both clusters are restarted: two processes with the same code can differ by about one per cent for as
long as they live, depending on where their memory lies.

The figure is the upper end of the 95 % interval of the ratio, minus 1. The ratio is the geometric mean over the pairs.
Its interval comes from a percentile bootstrap over rounds (the pairs of the same two processes), 10,000 resamples.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.daemons import Daemons, Job
from benchmarks.harness.job_settings import ROOT
from benchmarks.harness.report import median, report
from benchmarks.harness.stepped_cluster import STEPPED_WORKER, StepController
from services.timeouts import STANDARD_HEARTBEAT_SECONDS

NAME = "fault_cost"
BOUND = 0.02
WORKERS = 2
ROUNDS, PAIRS, BLOCK_STEPS = 16, 60, 1
"""Rounds, pairs in a round, steps in a block. A pair takes about a second on two cores."""
WARM_UP_STEPS = 8
NO_HEARTBEAT_SECONDS = 600.0
VERIFY_FRACTION = 0.002
"""Value that docs/operate/hardware.md recommends."""
RESAMPLES = 10_000
INTERVAL = 0.95
SEED = 5
CONFIG = ROOT / "configs" / "training_configs" / "demo.yaml"
CHECKS = "tiermesh_verifications_total"
MICRO_BATCHES_PER_WORKER = 4
MICRO_BATCHES = WORKERS * MICRO_BATCHES_PER_WORKER
SETTINGS = (f"training_config.gradient_accumulation_steps={MICRO_BATCHES_PER_WORKER}", "batch_size=4")


class Cluster(Daemons):
    """A 3-tier cluster whose workers can be paused between steps.

    Args:
        name: name of its folder under build/.
        heartbeat_seconds: heartbeat of the aggregator.
        verify_fraction: the job's `verify_fraction`.

    Attributes:
        gate: controller that pauses the workers.
    """

    gate: StepController

    def __init__(self, name: str, heartbeat_seconds: float, verify_fraction: float) -> None:
        heartbeat = ("--heartbeat-seconds", str(heartbeat_seconds))
        super().__init__(
            name,
            Job(CONFIG, STEPPED_WORKER, (*SETTINGS, f"training_config.verify_fraction={verify_fraction}")),
            workers=WORKERS,
            tiers=3,
            aggregator_options=heartbeat,
        )

    def _open_gate(self, path: Path, stack: ExitStack) -> None:
        self.gate = stack.enter_context(StepController(path, self._workers))

    def block(self, steps: int) -> dict[str, float]:
        """Take this many steps, and return the CPU seconds of each daemon."""
        before = self.cpu_seconds()
        self.gate.steps(steps)
        after = self.cpu_seconds()
        return {name: after[name] - before[name] for name in after}


@dataclass(frozen=True)
class Side:
    """Measurements with fault tolerance on, or off.

    Attributes:
        name: "on" or "off", for printed lines and folders.
        heartbeat_seconds: heartbeat of its aggregators.
        verify_fraction: `verify_fraction` of its jobs.
        blocks: CPU seconds of each daemon, for each block of all rounds.
    """

    name: str
    heartbeat_seconds: float
    verify_fraction: float
    blocks: list[dict[str, float]] = field(default_factory=list)

    def cluster(self) -> Cluster:
        """Return a new cluster of this side."""
        return Cluster(f"{NAME}-{self.name}", self.heartbeat_seconds, self.verify_fraction)

    @property
    def seconds(self) -> list[float]:
        """CPU seconds of all daemons together, for each block."""
        return [sum(block.values()) for block in self.blocks]

    def describe(self, steps: int) -> str:
        """Return a line with the medians per step, for blocks of this many steps."""
        each = ", ".join(
            f"{name} {1e3 * median([block[name] for block in self.blocks]) / steps:.2f}"
            for name in self.blocks[0]
        )
        return f"{self.name}: median {1e3 * median(self.seconds) / steps:.2f} ms of CPU a step: {each}"


def run(rounds: int = ROUNDS, pairs: int = PAIRS, block_steps: int = BLOCK_STEPS) -> bool:
    """Measure pairs of blocks. The side that is measured first alternates."""
    on = Side("on", STANDARD_HEARTBEAT_SECONDS, VERIFY_FRACTION)
    off = Side("off", NO_HEARTBEAT_SECONDS, 0.0)
    verified = sum(_measure_round((on, off), pairs, block_steps) for _ in range(rounds))
    ratios = [with_faults / without for with_faults, without in zip(on.seconds, off.seconds, strict=True)]
    low, high = interval([ratios[first : first + pairs] for first in range(0, len(ratios), pairs)])
    return report(
        NAME,
        high - 1,
        BOUND,
        f"{geometric_mean(ratios) - 1:+.4f}, 95 % interval [{low - 1:+.4f}, {high - 1:+.4f}] of {len(ratios)} pairs of "
        f"blocks of {block_steps} steps, in {rounds} rounds",
        on.describe(block_steps),
        off.describe(block_steps),
        f"computed twice: {verified:.0f} micro-batches, "
        f"{verified / (len(ratios) * block_steps * MICRO_BATCHES):.4f} of all",
        decimals=4,
    )


def _measure_round(sides: tuple[Side, Side], pairs: int, block_steps: int) -> float:
    """Measure pairs with two new clusters, and return how many micro-batches were computed twice."""
    with ExitStack() as stack:
        clusters = [stack.enter_context(side.cluster()) for side in sides]
        for cluster in clusters:
            cluster.gate.warm_up(WARM_UP_STEPS)
        before = clusters[0].metric("aggregator", CHECKS)
        for number in range(pairs):
            for side in (0, 1) if number % 2 else (1, 0):
                sides[side].blocks.append(clusters[side].block(block_steps))
        return clusters[0].metric("aggregator", CHECKS) - before


def geometric_mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def interval(rounds: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return both ends of the 95 % interval of a geometric mean, by a bootstrap over rounds of equal length."""
    draw, logs = random.Random(SEED), [math.log(geometric_mean(ratios)) for ratios in rounds]
    means = sorted(sum(draw.choices(logs, k=len(logs))) / len(logs) for _ in range(RESAMPLES))
    tail = int((1 - INTERVAL) / 2 * RESAMPLES)
    return math.exp(means[tail]), math.exp(means[-1 - tail])
