"""The aggregator's daemon: its options, and the service made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from aggregator.core.retention import Limits, Part
from services.caps import Caps
from services.errors import Refused
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.daemon import DaemonOptions, Service, run_role
from services.runtime.process import make_state_dir
from services.timeouts import STANDARD_HEARTBEAT_SECONDS, TIMEOUTS_IN_HEARTBEATS, Timeouts

if TYPE_CHECKING:
    from aggregator.storage.job_queue import JobQueue

OWN_TIMEOUTS = ("lock", "hello", "silent", "lapse", "takeover", "comeback", "stall", "unfit")
"""Timeouts that only the aggregator uses, so that they can be set by hand."""


@dataclass(frozen=True)
class AggregatorOptions(DaemonOptions):
    """The options of an aggregator.

    Attributes:
        state_dir: the folder of the queue and, in 2-tier, of the checkpoints; of a shard, of its cluster's identity.
        optimizer: `HOST:PORT` of the optimizer; None in 2-tier, where the optimizer runs in this process.
        data_dir: the folder of files that workers may read by their SHA-256; None for none.
        record: the file to record the core's inputs and effects in, for replay; None for no recording.
        heartbeat_seconds: the heartbeat that all timeouts follow from.
        timeout_overrides: timeouts set by hand, in seconds.
        shards: `HOST:PORT` of each shard; empty if payloads and the optimizer's tensors are in this process.
        shard: whether this process is a shard itself, which takes its orders from an aggregator.
        standby: whether it leads only while no other aggregator on the same state folder does.
        caps: the caps on what people can take.

        retention: Limits on what ended jobs leave, by what goes; none keep everything.
        notify_targets: the file of the targets of jobs' `notify`; None for none.
    """

    state_dir: Path = field(kw_only=True)
    optimizer: str | None = field(default=None, kw_only=True)
    data_dir: Path | None = field(default=None, kw_only=True)
    record: Path | None = field(default=None, kw_only=True)
    heartbeat_seconds: float = field(default=STANDARD_HEARTBEAT_SECONDS, kw_only=True)
    timeout_overrides: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    shards: tuple[str, ...] = field(default=(), kw_only=True)
    shard: bool = field(default=False, kw_only=True)
    standby: bool = field(default=False, kw_only=True)
    caps: Caps = field(default=Caps(), kw_only=True)

    retention: Mapping[Part, Limits] = field(default_factory=dict, kw_only=True)
    notify_targets: Path | None = field(default=None, kw_only=True)


def run(options: AggregatorOptions) -> int:
    """Run an aggregator until a signal stops it; return the exit code."""

    def build() -> tuple[Service, CollectorRegistry]:
        if options.shard:
            return _build_shard(options)
        from aggregator.data_folder import check_data_dir
        from aggregator.leader import LeaderService
        from aggregator.notifications.targets import TargetFile
        from aggregator.service import AggregatorService
        from aggregator.standby import StandbyService

        timeouts = _timeouts(options)
        if options.data_dir is not None:
            check_data_dir(options.data_dir)
        targets = TargetFile(options.notify_targets)
        make_state_dir(options.state_dir)
        metrics = AggregatorMetrics()

        first_epoch: int | None = None

        def make(queue: JobQueue, tensor_port: int) -> AggregatorService:
            nonlocal first_epoch
            first_epoch = first_epoch or queue.epoch
            record = options.record
            if record is not None and queue.epoch != first_epoch:  # the first one's recording stays
                record = record.with_name(f"{record.name}.{queue.epoch}")
            return AggregatorService(
                name=options.name,
                state_dir=options.state_dir,
                optimizer=options.optimizer,
                data_dir=options.data_dir,
                security=options.security,
                metrics=metrics,
                record=record,
                heartbeat_seconds=options.heartbeat_seconds,
                timeout_overrides=options.timeout_overrides,
                shared_memory=options.shared_memory,
                shards=options.shards,
                queue=queue,
                tensor_port=tensor_port,
                caps=options.caps,
                retention=options.retention,
                targets=targets,
            )

        service_class = StandbyService if options.standby else LeaderService
        service = service_class(name=options.name, state_dir=options.state_dir, timeouts=timeouts, make=make)
        return service, metrics.registry

    return run_role("aggregator", options, build)


def _timeouts(options: AggregatorOptions) -> Timeouts:
    """Return the timeouts; reject overrides of timeouts that other processes use too (Refused)."""
    for name in options.timeout_overrides:
        if name in TIMEOUTS_IN_HEARTBEATS and name not in OWN_TIMEOUTS:
            raise Refused(
                f"--timeout {name}: can't be set here, since other processes use this timeout too; change "
                f"--heartbeat-seconds, or set one of {', '.join(OWN_TIMEOUTS)}"
            )
    return Timeouts.from_heartbeat(options.heartbeat_seconds, options.timeout_overrides)


def _build_shard(options: AggregatorOptions) -> tuple[Service, CollectorRegistry]:
    from aggregator.shards.service import ShardService

    make_state_dir(options.state_dir)
    metrics = AggregatorMetrics()
    service = ShardService(
        name=options.name,
        state_dir=options.state_dir,
        metrics=metrics,
        shared_memory=options.shared_memory,
    )
    return service, metrics.registry
