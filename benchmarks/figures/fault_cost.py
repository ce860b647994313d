"""fault_cost: CPU seconds of a run that minds faults, against the same run that doesn't, with no fault in either.

Two clusters of real daemons, 3 tiers and 2 workers each, a GPT of 0.8 M parameters. One has the usual heartbeat and
checks with the `verify_fraction` that the documentation proposes, which is so much of all computing by definition; the
other has a heartbeat of 600 s, which is none, and checks nothing. Their workers can be held before a step
(peers/held_worker.py), so that by turns one cluster takes a block of steps while the other rests: pairs of blocks side
by side in time, first the one, then the other, and short, since the machine's speed drifts within seconds. What is
counted is CPU time, in user code and in the kernel, of all daemons of the cluster within its block: nothing of their
start. After some pairs both clusters are started anew: processes with the same code differ by a per cent or so for as
long as they live, by where their memory lies.

The figure is the upper end of the 95 % interval of the ratio, less 1: of the geometric mean over the pairs, by a
percentile bootstrap (rounds, the pairs of the same clusters, drawn with replacement, 10,000 times).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.daemons import Daemons, Job
from benchmarks.harness.held_cluster import HELD_WORKER, HoldingGate
from benchmarks.harness.report import median, report
from benchmarks.harness.setting import ROOT
from services.timeouts import STANDARD_HEARTBEAT_SECONDS

NAME = "fault_cost"
BOUND = 0.02
WORKERS = 2
ROUNDS, PAIRS, BLOCK_STEPS = 16, 60, 1
"""With so many pairs in each round; about a second a pair on two cores."""
WARM_UP_STEPS = 8
NO_HEARTBEAT_SECONDS = 600.0
VERIFY_FRACTION = 0.002
"""As docs/configuration.md has it."""
RESAMPLES = 10_000
INTERVAL = 0.95
SEED = 5
CONFIG = ROOT / "configs" / "training_configs" / "demo.yaml"
CHECKS = "tiermesh_verifications_total"
EACH = 4
MICRO_BATCHES = WORKERS * EACH
SETTINGS = (f"training_config.gradient_accumulation_steps={EACH}", "batch_size=4")
"""So many micro-batches for each worker, so that none is ever so slow that it is left out, and not held."""


class Cluster(Daemons):
    """See `Daemons`.

    Args:
        name: of its folder under build/.
        heartbeat_seconds: of the aggregator.
        verify_fraction: of the job.

    Attributes:
        gate: that holds the workers.
    """

    gate: HoldingGate

    def __init__(self, name: str, heartbeat_seconds: float, verify_fraction: float) -> None:
        heartbeat = ("--heartbeat-seconds", str(heartbeat_seconds))
        super().__init__(
            name,
            Job(CONFIG, HELD_WORKER, (*SETTINGS, f"training_config.verify_fraction={verify_fraction}")),
            workers=WORKERS,
            tiers=3,
            aggregator_options=heartbeat,
        )

    def _open_gate(self, path: Path, stack: ExitStack) -> None:
        self.gate = stack.enter_context(HoldingGate(path, self._workers))

    def block(self, steps: int) -> dict[str, float]:
        """CPU seconds of each daemon in so many steps."""
        before = self.cpu_seconds()
        self.gate.steps(steps)
        after = self.cpu_seconds()
        return {name: after[name] - before[name] for name in after}


@dataclass(frozen=True)
class Side:
    """What was measured with faults minded, or not minded: CPU seconds of each daemon, block by block.

    Attributes:
        name: for people, and of its clusters.
        heartbeat_seconds: of its aggregators.
        verify_fraction: of its jobs.
        blocks: of all rounds.
    """

    name: str
    heartbeat_seconds: float
    verify_fraction: float
    blocks: list[dict[str, float]] = field(default_factory=list)

    def cluster(self) -> Cluster:
        """A new one."""
        return Cluster(f"{NAME}-{self.name}", self.heartbeat_seconds, self.verify_fraction)

    @property
    def seconds(self) -> list[float]:
        """Of all daemons, block by block."""
        return [sum(block.values()) for block in self.blocks]

    def describe(self, steps: int) -> str:
        """Medians for a step, in blocks of so many."""
        each = ", ".join(
            f"{name} {1e3 * median([block[name] for block in self.blocks]) / steps:.2f}"
            for name in self.blocks[0]
        )
        return f"{self.name}: median {1e3 * median(self.seconds) / steps:.2f} ms of CPU a step: {each}"


def run(rounds: int = ROUNDS, pairs: int = PAIRS, block_steps: int = BLOCK_STEPS) -> bool:
    """Measure pairs of blocks, in turns of who is first."""
    minding = Side("on", STANDARD_HEARTBEAT_SECONDS, VERIFY_FRACTION)
    careless = Side("off", NO_HEARTBEAT_SECONDS, 0.0)
    checked = sum(_round((minding, careless), pairs, block_steps) for _ in range(rounds))
    ratios = [one / other for one, other in zip(minding.seconds, careless.seconds, strict=True)]
    low, high = interval([ratios[first : first + pairs] for first in range(0, len(ratios), pairs)])
    return report(
        NAME,
        high - 1,
        BOUND,
        f"{geometric_mean(ratios) - 1:+.4f}, 95 % interval [{low - 1:+.4f}, {high - 1:+.4f}] of {len(ratios)} pairs of "
        f"blocks of {block_steps} steps, in {rounds} rounds",
        minding.describe(block_steps),
        careless.describe(block_steps),
        f"computed twice: {checked:.0f} micro-batches, "
        f"{checked / (len(ratios) * block_steps * MICRO_BATCHES):.4f} of all",
        decimals=4,
    )


def _round(sides: tuple[Side, Side], pairs: int, block_steps: int) -> float:
    """Measure pairs of two new clusters; how many micro-batches were computed twice."""
    with ExitStack() as stack:
        clusters = [stack.enter_context(side.cluster()) for side in sides]
        for cluster in clusters:
            cluster.gate.warm_up(WARM_UP_STEPS)
        before = clusters[0].metric("aggregator", CHECKS)
        for number in range(pairs):
            for at in (0, 1) if number % 2 else (1, 0):
                sides[at].blocks.append(clusters[at].block(block_steps))
        return clusters[0].metric("aggregator", CHECKS) - before


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def interval(rounds: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The ends of the 95 % interval of a geometric mean over rounds of as many ratios each: rounds are drawn."""
    draw, logs = random.Random(SEED), [math.log(geometric_mean(ratios)) for ratios in rounds]
    means = sorted(sum(draw.choices(logs, k=len(logs))) / len(logs) for _ in range(RESAMPLES))
    tail = int((1 - INTERVAL) / 2 * RESAMPLES)
    return math.exp(means[tail]), math.exp(means[-1 - tail])
