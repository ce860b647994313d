"""aggregator_memory: the most that a 3-tier aggregator has above what it had with no job, in fp32 copies of the model.

Over TCP, 32 Mi parameters, on a cluster whose workers' meshes cost nothing (idle_cluster.py): with 4 workers, with 16,
and with 4 of which one gets but a tenth of the time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.harness.idle_cluster import IdleCluster
from benchmarks.harness.report import report

ELEMENTS = 32 * 1024 * 1024
TENSORS = 64
WARM_UP_STEPS = 4
STEPS = 6
BOUND = 2.0
SLICE_SECONDS = 0.02
"""The slow worker runs so long, then stands still for nine times as long."""


def run() -> bool:
    """Each of the three, a figure each."""
    reached = _measure("aggregator_memory", workers=4)
    reached &= _measure("aggregator_memory_16_workers", workers=16)
    reached &= _measure("aggregator_memory_slow_worker", workers=4, slow=True)
    return reached


def _measure(name: str, *, workers: int, slow: bool = False) -> bool:
    with IdleCluster(
        name, workers=workers, elements=ELEMENTS, tensors=TENSORS, tiers=3, options=("--no-shared-memory",)
    ) as cluster:
        cluster.gate.warm_up(WARM_UP_STEPS)
        cluster.gate.until_ready()
        with _slowed(cluster, "worker-1") if slow else _as_it_is():
            for _ in range(STEPS):
                cluster.gate.exchange()
                cluster.gate.until_ready()
        peak_bytes = cluster.memory_bytes("VmHWM")
    above = peak_bytes - cluster.idle_bytes
    return report(
        name,
        above / (4 * ELEMENTS),
        BOUND,
        f"peak {peak_bytes / 1e6:.0f} MB, {cluster.idle_bytes / 1e6:.0f} MB of it before there was a job; a copy is "
        f"{4 * ELEMENTS / 1e6:.0f} MB",
        decimals=2,
    )


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


@contextmanager
def _slowed(cluster: IdleCluster, worker: str) -> Iterator[None]:
    """Let a worker run for a tenth of the time only."""
    daemon, over = cluster.processes[worker], threading.Event()

    def slow_down() -> None:
        while not over.wait(SLICE_SECONDS):
            daemon.freeze()
            over.wait(9 * SLICE_SECONDS)
            daemon.thaw()

    thread = threading.Thread(target=slow_down)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
