"""links: figures on links of 1 Gbit/s between hosts that are emulated by namespaces (harness/hosts.py)."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.figures import links_sharded, links_step
from benchmarks.harness.hosts import GIGABIT, Hosts, congestion_control
from benchmarks.harness.link_meter import LinkMeter, phase_of, raw_share
from benchmarks.harness.no_compute_cluster import NoComputeCluster
from benchmarks.harness.report import median, milliseconds, report

WORKERS = 4
ELEMENTS = 16 * 1024 * 1024
TENSORS = 64
ROUNDS = 9
WARM_UP_STEPS = 3
LEAST_SHARE = 0.92


def run() -> bool:
    """Measure and report all three groups of figures."""
    return aggregator_link() & links_sharded.run() & links_step.run()


def aggregator_link() -> bool:
    """Measure how full the aggregator's link is while gradients come in and while weights go out.

    Four workers on hosts of their own, which compute nothing, have all gradients ready and start at once. The time of
    the gradients lasts from their first byte on the aggregator's interface to their last, by its counters
    (harness/link_meter.py); the time of the weights likewise. The time between the two (last sums, COMMIT, update of
    the first chunk) is printed below the figures. A share is the payload over what the link can carry in that time.
    Headers of Ethernet, IP and TCP leave at most 95.6 %.
    """
    names = ["aggregator", *(f"worker-{number}" for number in range(1, WORKERS + 1))]
    with ExitStack() as stack:
        network = stack.enter_context(Hosts(names, GIGABIT))
        hosts = network.by_name
        raw = raw_share([(hosts[name], hosts["aggregator"]) for name in names[1:]], GIGABIT)
        cluster = stack.enter_context(
            NoComputeCluster(
                "links",
                workers=WORKERS,
                elements=ELEMENTS,
                tensors=TENSORS,
                hosts=hosts,
            )
        )
        cluster.gate.warm_up(WARM_UP_STEPS)
        cluster.gate.until_ready()
        before, dropped = sum(cluster.cpu_seconds().values()), network.dropped_packets()
        payload_bytes = WORKERS * 4 * ELEMENTS
        carried = payload_bytes / (network.bits_per_second / 8)
        up, between, down, rounds = [], [], [], []
        for _ in range(ROUNDS):
            with LinkMeter(cluster.processes["aggregator"].pid) as meter:
                rounds.append(cluster.gate.exchange())
                cluster.gate.until_ready()
            gradients = phase_of(((each.seconds, each.received) for each in meter.readings), payload_bytes)
            weights = phase_of(
                (
                    (each.seconds, each.sent)
                    for each in meter.readings
                    if each.seconds >= gradients.last_seconds
                ),
                payload_bytes,
            )
            up.append(gradients.seconds)
            between.append(weights.first_seconds - gradients.last_seconds)
            down.append(weights.seconds)
        used = (sum(cluster.cpu_seconds().values()) - before) / ROUNDS
        dropped = network.dropped_packets() - dropped
    details = (
        f"{WORKERS} workers, {payload_bytes / 1e6:.0f} MB each way over {network.bits_per_second / 1e9:g} Gbit/s; "
        f"plain sockets fill {raw:.1%} of that link",
        f"gradients: {milliseconds(up)}; weights: {milliseconds(down)}; between them: {milliseconds(between)}",
        f"rounds: {milliseconds(rounds)}, {used:.2f} CPU seconds of all daemons",
        f"TCP shares links by {congestion_control()}; packets dropped by full ports: {dropped}",
    )
    reached = report("links_gradients_share", carried / median(up), LEAST_SHARE, *details, at_least=True)
    return report("links_weights_share", carried / median(down), LEAST_SHARE, at_least=True) and reached
