"""The worker's daemon: its options, and the service made from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

from services.runtime.daemon import DaemonOptions, Service, run_role
from services.runtime.metrics import WorkerMetrics
from services.transport.addresses import split_addresses


@dataclass(frozen=True)
class WorkerOptions(DaemonOptions):
    """What a worker is told.

    Attributes:
        aggregator: `HOST:PORT` of the aggregator that it works for, or several: of it and its standbys.
        data_dir: where it looks for corpora and tokenizers that aren't at the path which the job names.
        allowed_models: `package.module` or `package.module:Factory` of models of the user's own that jobs may name.
    """

    aggregator: str = field(kw_only=True)
    data_dir: Path | None = field(default=None, kw_only=True)
    allowed_models: tuple[str, ...] = field(default=(), kw_only=True)


def run(options: WorkerOptions) -> int:
    """Run a worker until it is told to stop; returns the exit code."""

    def build() -> tuple[Service, CollectorRegistry]:
        from worker.service import WorkerService

        aggregators = split_addresses("--aggregator", options.aggregator)
        metrics = WorkerMetrics()
        service = WorkerService(
            name=options.name,
            aggregators=aggregators,
            security=options.security,
            data_dir=options.data_dir,
            metrics=metrics,
            allowed_models=options.allowed_models,
            shared_memory=options.shared_memory,
        )
        return service, metrics.registry

    return run_role("worker", options, build)
