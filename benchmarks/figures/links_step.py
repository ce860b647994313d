"""links_step_over_critical_path: a step whose computing takes as long as its transfers, over its critical path."""

from __future__ import annotations

import os
from contextlib import ExitStack

from benchmarks.figures import adamw_over_memcpy
from benchmarks.harness.hosts import GIGABIT, Hosts, congestion_control
from benchmarks.harness.link_meter import raw_share
from benchmarks.harness.report import median, milliseconds, report
from benchmarks.harness.stepped_cluster import ComputePass, SteppedCluster, median_pass
from services.sizing.critical_path import Parts, critical_path

NAME = "links_step_over_critical_path"
BOUND = 1.15
WORKERS = 2
WIRE_BITS = 16
SETTINGS = ("batch_size=3",)
"""Batch size at which computing takes about as long as the transfers at 1 Gbit/s, on one core."""
LEAST_COMPUTING, MOST_COMPUTING = 0.8, 1.2
"""Bounds of computing time, as multiples of the time the link needs for a step's weights and gradients."""
BLOCKS, PASSES, STEPS = 9, 3, 3
WARM_UP_STEPS = 3


def run() -> bool:
    """Measure steps in turns with passes of the same workers, and compare a step with its critical path.

    In a step each worker computes one micro-batch of a GPT of 10.7 M parameters and exchanges it in bfloat16 with the
    aggregator. All roles run on hosts of their own. services/sizing/critical_path.py computes the least time from the
    parts: passes of both workers at once without exchange, the throughput of plain sockets, and the kernels for sums
    and update. If computing takes less than 0.8 or more than 1.2 times the transfers at 1 Gbit/s, the link's rate is
    changed so that both take equally long.
    """
    load = os.getloadavg()[0]
    names = ["aggregator", *(f"worker-{number}" for number in range(1, WORKERS + 1))]
    steps, least, ratios, cpu = [], [], [], dict.fromkeys(names, 0.0)
    with ExitStack() as stack:
        network = stack.enter_context(Hosts(names, GIGABIT))
        hosts = network.by_name
        cluster = stack.enter_context(
            SteppedCluster("links_step", workers=WORKERS, settings=SETTINGS, hosts=hosts)
        )
        cluster.gate.warm_up(WARM_UP_STEPS)
        computing = _lone_pass(cluster).seconds
        bits = 2 * WORKERS * WIRE_BITS * cluster.gate.elements
        if not LEAST_COMPUTING <= computing / (bits / GIGABIT) <= MOST_COMPUTING:
            network.shape(bits / computing)
        rate = network.bits_per_second
        raw = raw_share([(hosts[name], hosts["aggregator"]) for name in names[1:]], rate)
        kernels = {
            name: median(seconds) / adamw_over_memcpy.ELEMENTS
            for name, seconds in adamw_over_memcpy.measure().items()
        }
        for _ in range(BLOCKS):
            alone = _lone_pass(cluster)
            parts = Parts(
                elements=cluster.gate.elements,
                pass_seconds=alone.seconds,
                uses=alone.uses,
                ready=alone.ready,
                down_seconds=WORKERS * WIRE_BITS / (raw * rate),
                up_seconds=WORKERS * WIRE_BITS / (raw * rate),
                sum_seconds=kernels["accumulate bf16"] + kernels["mean and norm of fp32"],
                update_seconds=kernels[adamw_over_memcpy.ADAMW] + kernels["fp32 to bf16"],
            )
            least.append((parts, critical_path(parts)))
            before = cluster.cpu_seconds()
            steps.append(cluster.gate.step_seconds(STEPS))
            for name, used in cluster.cpu_seconds().items():
                cpu[name] += (used - before[name]) / (STEPS + 1) / BLOCKS
            ratios.append(steps[-1] / least[-1][1].step_seconds)
    passes = [parts.pass_seconds for parts, _ in least]
    transfer = least[0][0].transfer_seconds
    return report(
        NAME,
        median(ratios),
        BOUND,
        f"steps: {milliseconds(steps)}; the least: {milliseconds([path.step_seconds for _, path in least])}; "
        f"ratios {min(ratios):.3f} - {max(ratios):.3f}",
        f"computing alone {1e3 * median(passes):.0f} ms, {median(passes) / transfer:.2f} x the transfer's "
        f"{1e3 * transfer:.0f} ms, over {rate / 1e9:.3g} Gbit/s, of which plain sockets fill {raw:.1%}",
        f"of the least: all weights there after {1e3 * median([path.weights_end for _, path in least]):.0f} ms, the "
        f"passes end after {1e3 * median([path.pass_end for _, path in least]):.0f} ms",
        f"CPU seconds of a step: {', '.join(f'{name} {seconds:.2f}' for name, seconds in cpu.items())}; "
        f"load before: {load:.1f}; TCP shares links by {congestion_control()}",
    )


def _lone_pass(cluster: SteppedCluster) -> ComputePass:
    """Return the median pass of all workers, which run side by side."""
    return median_pass([each for worker in cluster.gate.compute_passes(PASSES) for each in worker])
