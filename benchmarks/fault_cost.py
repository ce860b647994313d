"""fault_cost: CPU seconds of a run that minds faults, against the same run that doesn't, with no fault in either.

Two clusters of real daemons, 3 tiers and 2 workers each, a GPT of 0.8 M parameters. One has the usual heartbeat, the
other one of 600 s, which is none. Their workers can be held before a step (peers/held_worker.py), so that by turns one
cluster takes a block of steps while the other rests: pairs of blocks side by side in time, first the one, then the
other. What is counted is CPU time, in user code and in the kernel, of all daemons of the cluster within its block:
nothing of their start.

The figure is the upper end of the 95 % interval of the ratio, less 1: of the geometric mean over the pairs, by a
percentile bootstrap (pairs drawn with replacement, 10,000 times).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.daemons import Daemons, Job
from benchmarks.held_cluster import HELD_WORKER, HoldingGate
from benchmarks.report import median, report
from benchmarks.setting import ROOT
from services.ladder import STANDARD_HEARTBEAT_SECONDS

NAME = "fault_cost"
BOUND = 0.02
WORKERS = 2
PAIRS, BLOCK_STEPS = 40, 20
WARM_UP_STEPS = 20
NO_HEARTBEAT_SECONDS = 600.0
RESAMPLES = 10_000
INTERVAL = 0.95
SEED = 5
CONFIG = ROOT / "configs" / "training_configs" / "demo.yaml"
SETTINGS = ("training_config.gradient_accumulation_steps=4", "batch_size=4")
"""Four micro-batches for each worker, so that none is ever so slow that it is left out, and not held."""


class Cluster(Daemons):
    """See `Daemons`.

    Args:
        name: of its folder under build/.
        heartbeat_seconds: of the aggregator.

    Attributes:
        gate: that holds the workers.
    """

    gate: HoldingGate

    def __init__(self, name: str, heartbeat_seconds: float) -> None:
        heartbeat = ("--heartbeat-seconds", str(heartbeat_seconds))
        super().__init__(
            name, Job(CONFIG, HELD_WORKER, SETTINGS), workers=WORKERS, tiers=3, aggregator_options=heartbeat
        )

    def _open_gate(self, path: Path, stack: ExitStack) -> None:
        self.gate = stack.enter_context(HoldingGate(path, self._workers))

    def block(self, steps: int) -> dict[str, float]:
        """CPU seconds of each daemon in so many steps."""
        before = self.cpu_seconds()
        self.gate.steps(steps)
        after = self.cpu_seconds()
        return {name: after[name] - before[name] for name in after}


def run(pairs: int = PAIRS, block_steps: int = BLOCK_STEPS) -> bool:
    """Measure pairs of blocks, in turns of who is first."""
    with ExitStack() as stack:
        minding = stack.enter_context(Cluster(f"{NAME}-on", STANDARD_HEARTBEAT_SECONDS))
        careless = stack.enter_context(Cluster(f"{NAME}-off", NO_HEARTBEAT_SECONDS))
        blocks: dict[Cluster, list[dict[str, float]]] = {minding: [], careless: []}
        for cluster in blocks:
            cluster.gate.warm_up(WARM_UP_STEPS)
        for number in range(pairs):
            for cluster in (minding, careless) if number % 2 else (careless, minding):
                blocks[cluster].append(cluster.block(block_steps))
    seconds = {cluster: [sum(block.values()) for block in each] for cluster, each in blocks.items()}
    ratios = [one / other for one, other in zip(seconds[minding], seconds[careless], strict=True)]
    low, high = interval(ratios)
    return report(
        NAME,
        high - 1,
        BOUND,
        f"{geometric_mean(ratios) - 1:+.4f}, 95 % interval [{low - 1:+.4f}, {high - 1:+.4f}] of {pairs} pairs of "
        f"blocks of {block_steps} steps",
        *(
            f"heartbeat {heartbeat:g} s: median {1e3 * median(seconds[cluster]) / block_steps:.2f} ms of CPU a step: "
            + ", ".join(
                f"{name} {1e3 * median([block[name] for block in blocks[cluster]]) / block_steps:.2f}"
                for name in blocks[cluster][0]
            )
            for cluster, heartbeat in (
                (minding, STANDARD_HEARTBEAT_SECONDS),
                (careless, NO_HEARTBEAT_SECONDS),
            )
        ),
        decimals=4,
    )


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The ends of the 95 % interval of a geometric mean, by a percentile bootstrap."""
    draw, logs = random.Random(SEED), [math.log(ratio) for ratio in ratios]
    means = sorted(sum(draw.choices(logs, k=len(logs))) / len(logs) for _ in range(RESAMPLES))
    tail = int((1 - INTERVAL) / 2 * RESAMPLES)
    return math.exp(means[tail]), math.exp(means[-1 - tail])
