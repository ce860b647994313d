"""exposed: what a step of two workers on a real model takes beyond their computing, as a share of it.

A GPT of 10.7 M parameters (stepped_cluster.py), 4 sequences of 256 tokens a worker, bfloat16 on the wire both ways,
gradients clipped, 2 tiers on loopback: over gRPC (`exposed`), and through shared memory as roles on one host do by
themselves (`exposed_same_host`). Computing is forward and backward passes that the same workers make side by side
while nothing is exchanged, by turns with steps; so two workers compute on two cores all the time, and whatever CPU time
the exchange takes counts as exposed, too, though on hosts of their own the aggregator's would not.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.harness.report import median, milliseconds, report
from benchmarks.harness.stepped_cluster import SteppedCluster

WORKERS = 2
BLOCKS = 9
PASSES, STEPS = 3, 3
"""In a block, of each cluster by turns: so many passes of each worker, then so many steps."""
WARM_UP_STEPS = 3
BOUND = 0.15
SETTINGS = ("batch_size=4",)
CLUSTERS = {"exposed": ("--no-shared-memory",), "exposed_same_host": ()}


@dataclass
class Measured:
    """Of a cluster: seconds of a pass and of a step, block by block; CPU seconds of a step, all daemons, likewise."""

    passes: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def block(self, cluster: SteppedCluster) -> None:
        """Measure one."""
        before = cluster.cpu_seconds()
        passes = [each.seconds for worker in cluster.gate.compute_passes(PASSES) for each in worker]
        between = cluster.cpu_seconds()
        self.steps.append(cluster.gate.step_seconds(STEPS))
        after = cluster.cpu_seconds()
        self.passes.append(median(passes))
        workers = [name for name in after if name.startswith("worker")]
        self.cores.append(sum(between[name] - before[name] for name in workers) / sum(passes))
        for name in after:
            self.cpu.setdefault(name, []).append((after[name] - between[name]) / (STEPS + 1))

    @property
    def exposed(self) -> list[float]:
        """The share, block by block."""
        return [step / computing - 1 for step, computing in zip(self.steps, self.passes, strict=True)]


def run() -> bool:
    """Measure both clusters by turns."""
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        clusters = {
            name: stack.enter_context(
                SteppedCluster(name, workers=WORKERS, settings=SETTINGS, options=options)
            )
            for name, options in CLUSTERS.items()
        }
        measured = {name: Measured() for name in clusters}
        for cluster in clusters.values():
            cluster.gate.warm_up(WARM_UP_STEPS)
        for _ in range(BLOCKS):
            for name, cluster in clusters.items():
                measured[name].block(cluster)
    reached = True
    for name, of in measured.items():
        cpu = ", ".join(f"{daemon} {median(seconds):.2f}" for daemon, seconds in of.cpu.items())
        reached &= report(
            name,
            median(of.exposed),
            BOUND,
            f"step: {milliseconds(of.steps)}; computing alone: {milliseconds(of.passes)}",
            f"shares {min(of.exposed):.3f} - {max(of.exposed):.3f}; CPU seconds of a step: {cpu}",
            f"computing alone, a worker had {median(of.cores):.2f} of a core; load before: {load:.1f}",
        )
    return reached
