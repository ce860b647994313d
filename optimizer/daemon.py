"""The optimizer's daemon: its options, and the service made from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

from services.runtime.daemon import DaemonOptions, Service, run_role
from services.runtime.metrics import OptimizerMetrics
from services.runtime.process import make_state_dir


@dataclass(frozen=True)
class OptimizerOptions(DaemonOptions):
    """What an optimizer is told.

    Attributes:
        state_dir: where the checkpoints live.
        record: file to record the core's inputs and effects in, for replay; None: none.
    """

    state_dir: Path = field(kw_only=True)
    record: Path | None = field(default=None, kw_only=True)


def run(options: OptimizerOptions) -> int:
    """Run an optimizer until it is told to stop; returns the exit code."""

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
