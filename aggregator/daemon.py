"""The aggregator's daemon: its options, and the service made from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

from services.daemon import DaemonOptions, Service, run_role
from services.errors import Refused
from services.metrics import AggregatorMetrics
from services.process import make_state_dir
from services.security import split_address


@dataclass(frozen=True)
class AggregatorOptions(DaemonOptions):
    """What an aggregator is told.

    Attributes:
        state_dir: where the queue, and in 2-tier the checkpoints, live.
        optimizer: `HOST:PORT` of the optimizer; None: 2-tier, the optimizer runs inside.
        record: file to record the core's inputs and effects in, for replay; None: none.
        heartbeat_seconds: how often both sides of a connection speak at least.
    """

    state_dir: Path = field(kw_only=True)
    optimizer: str | None = field(default=None, kw_only=True)
    record: Path | None = field(default=None, kw_only=True)
    heartbeat_seconds: float = field(default=5.0, kw_only=True)


def run(options: AggregatorOptions) -> int:
    """Run an aggregator until it is told to stop; returns the exit code."""

    def build() -> tuple[Service, CollectorRegistry]:
        from aggregator.service import AggregatorService

        if options.optimizer is not None:
            split_address("--optimizer", options.optimizer)
        if not 0.1 <= options.heartbeat_seconds <= 600:
            raise Refused(f"--heartbeat-seconds {options.heartbeat_seconds}: expected 0.1 to 600; 5 is usual")
        make_state_dir(options.state_dir)
        metrics = AggregatorMetrics()
        service = AggregatorService(
            name=options.name,
            state_dir=options.state_dir,
            optimizer=options.optimizer,
            security=options.security,
            metrics=metrics,
            record=options.record,
            heartbeat_seconds=options.heartbeat_seconds,
            shared_memory=options.shared_memory,
        )
        return service, metrics.registry

    return run_role("aggregator", options, build)
