"""The worker's daemon: its options, and how its service is made from them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from services.config.refusals import format_value
from services.errors import Refused
from services.runtime.daemon import DaemonOptions, Service, run_role
from services.runtime.metrics import WorkerMetrics
from services.transport.addresses import split_address, split_addresses

_HOST_NAME = re.compile(r"[A-Za-z0-9_.-]{1,253}")


@dataclass(frozen=True)
class WorkerOptions(DaemonOptions):
    """Options of a worker.

    Attributes:
        aggregator: `HOST:PORT` of its aggregator, or several separated by commas: the aggregator and its standbys.
        data_dir: folder that is searched for corpora and tokenizers missing at the job's path.
        state_dir: folder where the worker keeps which cluster it belongs to; None: it keeps nothing.
        cache_dir: folder of the inputs that were read from the aggregator; None: none are read.
        cache_bytes: largest size of these files.
        advertise: host at which workers of other stages reach it; empty for the one of `listen`, or the one that the
            aggregator sees if `listen` is any address.
        allowed_models: `package.module` or `package.module:Factory` of users' own models that jobs may name.
        accepts_code: whether code that is sent with jobs may be imported.
        join_socket: path of the socket at which processes of users join, in place of a mesh; None for none.
        allowed_users: users and `@GROUP` that may join; empty for this process's user alone.
    """

    aggregator: str = field(kw_only=True)
    data_dir: Path | None = field(default=None, kw_only=True)
    state_dir: Path | None = field(default=None, kw_only=True)
    cache_dir: Path | None = field(default=None, kw_only=True)
    cache_bytes: int = field(default=1 << 62, kw_only=True)
    advertise: str = field(default="", kw_only=True)
    allowed_models: tuple[str, ...] = field(default=(), kw_only=True)
    accepts_code: bool = field(default=False, kw_only=True)
    join_socket: Path | None = field(default=None, kw_only=True)
    allowed_users: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def pipeline_host(self) -> str:
        """Host at which other workers reach this one; empty if it is any of this host's addresses.

        Raises:
            Refused: `advertise` is no host.
        """
        if self.advertise:
            _check_advertised("--advertise", self.advertise)
            return self.advertise
        host, _ = split_address("--listen", self.listen)
        return "" if host in ("0.0.0.0", "::") else host


def run(options: WorkerOptions, *, make_step: str = "") -> int:
    """Run a worker until a signal stops it.

    Args:
        options: the command line's options.
        make_step: `module:name` of the factory of a job's training step; empty for `training.step:TrainingStep`.

    Returns:
        The exit code of the process.
    """

    def build() -> tuple[Service, CollectorRegistry]:
        # Imported here: the command line and its --help should not wait for numpy and gRPC.
        from worker.compute_process import TRAINING_STEP
        from worker.service import WorkerService

        metrics = WorkerMetrics()
        if options.join_socket is not None:
            return _build_external(options, options.join_socket, metrics), metrics.registry
        service = WorkerService(
            name=options.name,
            aggregators=split_addresses("--aggregator", options.aggregator),
            security=options.security,
            data_dir=options.data_dir,
            metrics=metrics,
            state_dir=options.state_dir,
            cache_dir=options.cache_dir,
            cache_bytes=options.cache_bytes,
            allowed_models=options.allowed_models,
            accepts_code=options.accepts_code,
            shared_memory=options.shared_memory,
            make_step=make_step or TRAINING_STEP,
            pipeline_host=options.pipeline_host,
        )
        return service, metrics.registry

    return run_role("worker", options, build)


def _build_external(options: WorkerOptions, join_socket: Path, metrics: WorkerMetrics) -> Service:
    from worker.external_worker import ExternalService, ExternalWorker
    from worker.joining import AllowedUsers, JoinSocket

    make_worker = partial(
        ExternalWorker,
        name=options.name,
        aggregators=split_addresses("--aggregator", options.aggregator),
        security=options.security,
        data_dir=None,
        metrics=metrics,
        state_dir=options.state_dir,
        shared_memory=options.shared_memory,
    )
    return ExternalService(JoinSocket(join_socket, AllowedUsers(options.allowed_users)), make_worker)


def _check_advertised(name: str, host: str) -> None:
    """Check that a text is a host name or an IP address that others can connect to (Refused)."""
    try:
        is_any = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        is_any = False
        if not _HOST_NAME.fullmatch(host):
            raise Refused(
                f"{name}: {format_value(host)} given, expected a host name or an IP address without a port; correct it"
            ) from None
    if is_any:
        raise Refused(
            f"{name}: {format_value(host)} given, expected a host at which others reach this one, and not any of its "
            "addresses; name one, or leave it out"
        )
