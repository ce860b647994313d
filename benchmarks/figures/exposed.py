"""exposed: share of a step that computing doesn't hide: (step - computing) / computing, for two workers.

The model is a GPT of 10.7 M parameters (stepped_cluster.py) with 4 sequences of 256 tokens per worker. Gradients are
clipped, and bfloat16 on the wire in both directions. The cluster has 2 tiers on loopback. `exposed` sends tensors over
gRPC, `exposed_same_host` through shared memory, which is the default on one host.

Computing is measured in turns with the steps: the same workers make passes side by side while nothing is exchanged. On
two cores both workers compute all the time, so CPU time of the exchange counts as exposed. On separate hosts the
aggregator's share of it would not.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.harness.loopback import even_loopback
from benchmarks.harness.report import median, milliseconds, report
from benchmarks.harness.stepped_cluster import SteppedCluster

WORKERS = 2
BLOCKS = 9
PASSES, STEPS = 3, 3
"""Passes and steps of each worker in a block. The clusters take turns, one block at a time."""
WARM_UP_STEPS = 3
BOUND = 0.15
SETTINGS = ("batch_size=4",)
CLUSTERS = {"exposed": ("--no-shared-memory",), "exposed_same_host": ()}


@dataclass
class Measured:
    """Measurements of one cluster, one entry per block.

    Attributes:
        passes: median seconds of a pass.
        steps: seconds of a step.
        cores: cores that a worker had during its passes.
        cpu: CPU seconds of a step, by daemon.
    """

    passes: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def block(self, cluster: SteppedCluster) -> None:
        """Measure one block."""
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
        """Exposed share of each block."""
        return [step / computing - 1 for step, computing in zip(self.steps, self.passes, strict=True)]


def run() -> bool:
    """Measure both clusters in turns."""
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        network = stack.enter_context(even_loopback())
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
            network,
        )
    return reached
