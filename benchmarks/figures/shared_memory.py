"""shared_memory_over_grpc: an exchange of 2 workers on one host through shared memory, over the same through gRPC.

The daemons are real, their workers compute nothing, and the model has 32 Mi parameters. The two clusters take turns.
The same bytes over plain sockets are measured after them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness.no_compute_cluster import NoComputeCluster
from benchmarks.harness.report import median, milliseconds, report
from services.errors import Failed

NAME = "shared_memory_over_grpc"
BOUND = 0.7
WORKERS, TIERS = 2, 2
ELEMENTS, TENSORS = 32 * 1024 * 1024, 64
ROUNDS, WARM_UP_STEPS = 15, 4
FLOOR_SECONDS = 120.0


def run() -> bool:
    """Measure both clusters in turns, then plain sockets."""
    seconds: dict[str, list[float]] = {"shared memory": [], "gRPC": []}
    with ExitStack() as stack:
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
    seconds["raw TCP floor"] = _floor()
    return report(
        NAME,
        median(seconds["shared memory"]) / median(seconds["gRPC"]),
        BOUND,
        *(f"{name}: {milliseconds(each)}" for name, each in seconds.items()),
        *(f"{name}: {each:.2f} CPU seconds a step, all daemons" for name, each in used.items()),
        decimals=2,
    )


def _floor() -> list[float]:
    script = Path(__file__).parents[1] / "peers" / "raw_exchange.py"
    command = [sys.executable, str(script), str(WORKERS), str(4 * ELEMENTS), str(ROUNDS)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=FLOOR_SECONDS)
    except subprocess.TimeoutExpired:
        raise Failed(f"raw_exchange.py: not done within {FLOOR_SECONDS:g} s") from None
    except subprocess.CalledProcessError as error:
        raise Failed(
            f"raw_exchange.py: exit code {error.returncode}: {error.stderr.strip()[-300:]}"
        ) from None
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds
