"""A cluster of real daemons whose workers' meshes cost nothing, one job on it, stepped from here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness.daemons import Daemons, Job
from benchmarks.harness.gate import Gate
from benchmarks.harness.hosts import Host
from benchmarks.harness.setting import ROOT

IDLE_WORKER = Path(__file__).parents[1] / "peers" / "idle_worker.py"
CONFIG = ROOT / "configs" / "training_configs" / "linear_regression.yaml"


class IdleCluster(Daemons):
    """See `Daemons`.

    Args:
        elements: parameters of the model.
        tensors: that they are.
        settings: of the job, as `--set` takes them.

    Attributes:
        gate: that all workers wait at, each step.
    """

    gate: Gate

    def __init__(
        self,
        name: str,
        *,
        workers: int,
        elements: int,
        tensors: int,
        tiers: int = 2,
        settings: tuple[str, ...] = (),
        options: tuple[str, ...] = (),
        hosts: Mapping[str, Host] | None = None,
        shards: int = 0,
    ) -> None:
        environment = {"TIERMESH_BENCH_ELEMENTS": str(elements), "TIERMESH_BENCH_TENSORS": str(tensors)}
        job = Job(CONFIG, IDLE_WORKER, settings, environment)
        super().__init__(name, job, workers=workers, tiers=tiers, options=options, hosts=hosts, shards=shards)

    def _open_gate(self, path: Path, stack: ExitStack) -> None:
        self.gate = stack.enter_context(Gate(path, self._workers))
