"""links_sharded_over_least: an exchange of 4 workers through shards on their hosts, over the links' least time."""

from __future__ import annotations

import os
from contextlib import ExitStack

from benchmarks.harness.hosts import GIGABIT, Hosts, congestion_control
from benchmarks.harness.link_meter import raw_share
from benchmarks.harness.no_compute_cluster import NoComputeCluster
from benchmarks.harness.report import median, milliseconds, report

NAME = "links_sharded_over_least"
BOUND = 1.15
WORKERS = 4
ELEMENTS, TENSORS = 32 * 1024 * 1024, 64
ROUNDS, WARM_UP_STEPS = 9, 3


def run() -> bool:
    """Measure with a shard on each worker's host; the aggregator runs on the first.

    An exchange starts when all gradients are ready. It ends when the last worker has its last new weights in its own
    array. Each of N workers sends all gradients but its own shard's, which are (N - 1)/N of them, and receives as much
    of the weights. Its shard receives and sends (N - 1) parts of 1/N, so its link carries 2 (N - 1)/N x bytes each way.
    The least time is that over the bandwidth. Headers alone make it 1.046 times as long.
    """
    load = os.getloadavg()[0]
    names = [f"worker-{number}" for number in range(1, WORKERS + 1)]
    with ExitStack() as stack:
        network = stack.enter_context(Hosts(names, GIGABIT))
        hosts = dict(network.by_name)
        flows = [(one, other) for one in hosts.values() for other in hosts.values() if one is not other]
        raw = raw_share(flows, GIGABIT)
        hosts["aggregator"] = hosts["worker-1"]
        hosts.update({f"shard-{number}": hosts[name] for number, name in enumerate(names, 1)})
        cluster = stack.enter_context(
            NoComputeCluster(
                "links_sharded",
                workers=WORKERS,
                elements=ELEMENTS,
                tensors=TENSORS,
                hosts=hosts,
                shards=WORKERS,
            )
        )
        cluster.gate.warm_up(WARM_UP_STEPS)
        cluster.gate.until_ready()
        before, dropped = sum(cluster.cpu_seconds().values()), network.dropped_packets()
        rounds = []
        for _ in range(ROUNDS):
            rounds.append(cluster.gate.exchange())
            cluster.gate.until_ready()
        used = (sum(cluster.cpu_seconds().values()) - before) / ROUNDS
        dropped = network.dropped_packets() - dropped
    least = 2 * (WORKERS - 1) / WORKERS * 4 * 8 * ELEMENTS / GIGABIT
    return report(
        NAME,
        median(rounds) / least,
        BOUND,
        f"exchange: {milliseconds(rounds)}; the least: {1e3 * least:.1f} ms; plain sockets that send as much from each "
        f"to each fill {raw:.1%} of the slowest link, so take {1 / raw:.2f} times the least",
        f"TCP shares links by {congestion_control()}; packets dropped by full ports: {dropped}",
        f"CPU seconds of an exchange, all daemons: {used:.2f}; load before: {load:.1f}",
    )
