"""A cluster of real daemons whose workers compute nothing, with one job that the benchmark steps."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness.daemons import Daemons, Job
from benchmarks.harness.hosts import Host
from benchmarks.harness.job_settings import ROOT
from benchmarks.harness.step_gate import StepGate

NO_COMPUTE_WORKER = Path(__file__).parents[1] / "peers" / "no_compute_worker.py"
CONFIG = ROOT / "configs" / "training_configs" / "linear_regression.yaml"


class NoComputeCluster(Daemons):
    """A cluster for figures of pure communication; the arguments below extend those of `Daemons`.

    Args:
        elements: number of parameters of the model.
        tensors: number of tensors that hold them.
        settings: overrides of the job, in the form of `--set`.

    Attributes:
        gate: gate at which all workers wait in each step.
    """

    gate: StepGate

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
        sizes = {"num_features": elements // 32, "num_targets": 32, "bias": "false", "training_samples": 1000}
        model = (f"linear_regression_config.{key}={value}" for key, value in sizes.items())
        job = Job(CONFIG, NO_COMPUTE_WORKER, (*model, *settings), environment)
        super().__init__(name, job, workers=workers, tiers=tiers, options=options, hosts=hosts, shards=shards)

    def _open_gate(self, path: Path, stack: ExitStack) -> None:
        self.gate = stack.enter_context(StepGate(path, self._workers))
