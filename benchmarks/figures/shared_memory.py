"""shared_memory_over_grpc: an exchange of 2 workers on one host through shared memory, over the same through gRPC.

The daemons are real, their workers compute nothing, and the model has 32 Mi parameters. The two clusters take turns.
The same bytes over plain sockets are measured after them.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks.figures.exchange import measure_peer
from benchmarks.harness.loopback import even_loopback
from benchmarks.harness.no_compute_cluster import NoComputeCluster
from benchmarks.harness.report import median, milliseconds, report

NAME = "shared_memory_over_grpc"
BOUND = 0.7
WORKERS, TIERS = 2, 2
ELEMENTS, TENSORS = 32 * 1024 * 1024, 64
ROUNDS, WARM_UP_STEPS = 15, 4


def run() -> bool:
    """Measure both clusters in turns, then plain sockets."""
    seconds: dict[str, list[float]] = {"shared memory": [], "gRPC": []}
    with ExitStack() as stack:
        network = stack.enter_context(even_loopback())
        clusters = {
            name: stack.enter_context(
                NoComputeCluster(
                    f"shared_memory_{len(options)}",
                    workers=WORKERS,
                    elements=ELEMENTS,
                    tensors=TENSORS,
                    tiers=TIERS,
                    options=options,
                )
            )
            for name, options in (("shared memory", ()), ("gRPC", ("--no-shared-memory",)))
        }
        for cluster in clusters.values():
            cluster.gate.warm_up(WARM_UP_STEPS)
            cluster.gate.until_ready()
        before = {name: sum(cluster.cpu_seconds().values()) for name, cluster in clusters.items()}
        for _ in range(ROUNDS):
            for name, cluster in clusters.items():
                seconds[name].append(cluster.gate.exchange())
                cluster.gate.until_ready()
        used = {
            name: (sum(cluster.cpu_seconds().values()) - before[name]) / ROUNDS
            for name, cluster in clusters.items()
        }
        script = Path(__file__).parents[1] / "peers" / "raw_exchange.py"
        floor = measure_peer([sys.executable, script, WORKERS, 4 * ELEMENTS, ROUNDS])
    seconds["raw TCP floor"] = [each for each, _ in floor]
    used["raw TCP floor"] = median([each for _, each in floor])
    return report(
        NAME,
        median(seconds["shared memory"]) / median(seconds["gRPC"]),
        BOUND,
        *(
            f"{name}: {milliseconds(each)}, {used[name]:.2f} CPU seconds of all processes"
            for name, each in seconds.items()
        ),
        network,
        decimals=2,
    )
