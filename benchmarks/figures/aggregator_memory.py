"""aggregator_memory: peak memory of a 3-tier aggregator above its idle memory, in fp32 copies of the model.

The workers compute nothing (no_compute_cluster.py) and exchange 32 Mi parameters over TCP. The figure is measured with
4 workers, with 16, and with 4 of which one runs a tenth of the time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from benchmarks.harness.no_compute_cluster import NoComputeCluster
from benchmarks.harness.report import report

ELEMENTS = 32 * 1024 * 1024
TENSORS = 64
WARM_UP_STEPS = 4
STEPS = 6
BOUND = 2.0
SLICE_SECONDS = 0.02
"""Time for which the slow worker runs before it is stopped for nine times as long."""


def run() -> bool:
    """Measure and report the three figures."""
    reached = _measure("aggregator_memory", workers=4)
    reached &= _measure("aggregator_memory_16_workers", workers=16)
    reached &= _measure("aggregator_memory_slow_worker", workers=4, slow=True)
    return reached


def _measure(name: str, *, workers: int, slow: bool = False) -> bool:
    with NoComputeCluster(
        name, workers=workers, elements=ELEMENTS, tensors=TENSORS, tiers=3, options=("--no-shared-memory",)
    ) as cluster:
        cluster.gate.warm_up(WARM_UP_STEPS)
        cluster.gate.until_ready()
        with _slowed(cluster, "worker-1") if slow else nullcontext():
            for _ in range(STEPS):
                cluster.gate.exchange()
                cluster.gate.until_ready()
        peak_bytes = cluster.memory_bytes("VmHWM")
    above_bytes = peak_bytes - cluster.idle_bytes
    return report(
        name,
        above_bytes / (4 * ELEMENTS),
        BOUND,
        f"peak {peak_bytes / 1e6:.0f} MB, {cluster.idle_bytes / 1e6:.0f} MB of it before the job; a copy is "
        f"{4 * ELEMENTS / 1e6:.0f} MB",
        decimals=2,
    )


@contextmanager
def _slowed(cluster: NoComputeCluster, worker: str) -> Iterator[None]:
    """Let a worker run for only a tenth of the time."""
    daemon, stopped = cluster.processes[worker], threading.Event()

    def slow_down() -> None:
        while not stopped.wait(SLICE_SECONDS):
            daemon.freeze()
            stopped.wait(9 * SLICE_SECONDS)
            daemon.thaw()

    thread = threading.Thread(target=slow_down)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
