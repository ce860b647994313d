"""The optimizer daemon: its options, and the service built from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

from services.runtime.daemon import DaemonOptions, Service, run_role
from services.runtime.metrics import OptimizerMetrics
from services.runtime.process import make_state_dir


@dataclass(frozen=True)
class OptimizerOptions(DaemonOptions):
    """Options of an optimizer daemon.

    Attributes:
        state_dir: folder of the checkpoints.
        record: file that receives the core's inputs and effects for replay; None records nothing.
    """

    state_dir: Path = field(kw_only=True)
    record: Path | None = field(default=None, kw_only=True)


def run(options: OptimizerOptions) -> int:
    """Run an optimizer until a signal stops it; return the exit code."""

    def build() -> tuple[Service, CollectorRegistry]:
        from optimizer.service import OptimizerService

        make_state_dir(options.state_dir)
        metrics = OptimizerMetrics()
        service = OptimizerService(
            name=options.name,
            state_dir=options.state_dir,
            metrics=metrics,
            record=options.record,
            shared_memory=options.shared_memory,
        )
        return service, metrics.registry

    return run_role("optimizer", options, build)
