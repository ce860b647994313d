"""The aggregator's daemon: its options, and the service made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from services.errors import Refused
from services.runtime.daemon import DaemonOptions, Service, run_role
from services.runtime.metrics import AggregatorMetrics
from services.runtime.process import make_state_dir
from services.timeouts import STANDARD_HEARTBEAT_SECONDS, TIMEOUTS_IN_HEARTBEATS, Timeouts
from services.transport.security import split_address

if TYPE_CHECKING:
    from aggregator.storage.job_queue import JobQueue

OWN_RUNGS = ("lock", "hello", "silent", "lapse", "takeover", "comeback", "stall", "unfit")
"""Timeouts that the aggregator alone keeps."""


@dataclass(frozen=True)
class AggregatorOptions(DaemonOptions):
    """What an aggregator is told.

    Attributes:
        state_dir: where the queue, and in 2-tier the checkpoints, live.
        optimizer: `HOST:PORT` of the optimizer; None: 2-tier, the optimizer runs inside.
        record: file to record the core's inputs and effects in, for replay; None: none.
        heartbeat_seconds: what all timeouts follow from.
        timeout_overrides: rungs of the ladder that are set by hand, in seconds.
        shards: `HOST:PORT` of each process that payloads and the optimizer's tensors are in; none: they are in this
            one.
        shard: whether this is such a process itself, which is told everything by the aggregator that names it.
        standby: whether it leads only while no other aggregator on the same state dir does.
    """

    state_dir: Path = field(kw_only=True)
    optimizer: str | None = field(default=None, kw_only=True)
    record: Path | None = field(default=None, kw_only=True)
    heartbeat_seconds: float = field(default=STANDARD_HEARTBEAT_SECONDS, kw_only=True)
    timeout_overrides: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    shards: tuple[str, ...] = field(default=(), kw_only=True)
    shard: bool = field(default=False, kw_only=True)
    standby: bool = field(default=False, kw_only=True)


def run(options: AggregatorOptions) -> int:
    """Run an aggregator until it is told to stop; returns the exit code."""

    def build() -> tuple[Service, CollectorRegistry]:
        _check_roles(options)
        if options.shard:
            return _build_shard(options)
        from aggregator.service import AggregatorService
        from aggregator.standby import StandbyService

        if not 0.1 <= options.heartbeat_seconds <= 600:
            raise Refused(f"--heartbeat-seconds {options.heartbeat_seconds}: expected 0.1 to 600; 5 is usual")
        timeouts = _timeouts(options)
        make_state_dir(options.state_dir)
        metrics = AggregatorMetrics()

        def make(queue: JobQueue | None) -> AggregatorService:
            return AggregatorService(
                name=options.name,
                state_dir=options.state_dir,
                optimizer=options.optimizer,
                security=options.security,
                metrics=metrics,
                record=options.record,
                heartbeat_seconds=options.heartbeat_seconds,
                timeout_overrides=options.timeout_overrides,
                shared_memory=options.shared_memory,
                shards=options.shards,
                queue=queue,
            )

        if not options.standby:
            return make(None), metrics.registry
        service = StandbyService(
            name=options.name, state_dir=options.state_dir, timeouts=timeouts, metrics=metrics, make=make
        )
        return service, metrics.registry

    return run_role("aggregator", options, build)


def _check_roles(options: AggregatorOptions) -> None:
    """Hold what it is to do to be one thing (Refused)."""
    if options.shard and (options.shards or options.optimizer):
        other = "--shards" if options.shards else "--optimizer"
        raise Refused(
            f"--shard and {other}: a shard does what its aggregator says, and has neither shards nor an optimizer; "
            f"give {other} to the aggregator"
        )
    if options.shard and options.standby:
        raise Refused(
            "--shard and --standby: a shard does what its aggregator says, whichever that is; give --standby to the "
            "aggregator"
        )
    if options.optimizer is not None:
        if options.shards:
            raise Refused(
                "--shards and --optimizer: the optimizer's tensors are in the shards (2-tier); give one of them only"
            )
        split_address("--optimizer", options.optimizer)
    for address in options.shards:
        split_address("--shards", address)
    twice = {address for address in options.shards if options.shards.count(address) > 1}
    if twice:
        raise Refused(f"--shards: {', '.join(sorted(twice))} given twice; each shard is a process of its own")


def _timeouts(options: AggregatorOptions) -> Timeouts:
    """The timeouts; those that are set by hand must be an aggregator's own, and in order (Refused)."""
    for name in options.timeout_overrides:
        if name in TIMEOUTS_IN_HEARTBEATS and name not in OWN_RUNGS:
            raise Refused(
                f"--timeout {name}: other processes keep it too, so it follows from the heartbeat alone; expected one "
                f"of {', '.join(OWN_RUNGS)}"
            )
    return Timeouts.from_heartbeat(options.heartbeat_seconds, options.timeout_overrides)


def _build_shard(options: AggregatorOptions) -> tuple[Service, CollectorRegistry]:
    from aggregator.shards.server.service import ShardService

    metrics = AggregatorMetrics()
    service = ShardService(name=options.name, metrics=metrics, shared_memory=options.shared_memory)
    return service, metrics.registry
