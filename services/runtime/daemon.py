"""Daemon around a role's service: opens its ports, runs the service, and stops it."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar, runtime_checkable

import grpc
from prometheus_client import CollectorRegistry

from services.instrumentation import failpoints, timeline
from services.instrumentation.timeline import TimelineOptions
from services.names import check_name
from services.runtime import logs, process
from services.runtime.certificate_watch import CertificateWatch, check_own_certificate
from services.runtime.descriptors import PortLimits, limit_ports, raise_descriptor_limit
from services.runtime.metrics import ConnectionMetrics
from services.runtime.metrics_server import MetricsServer, start_metrics
from services.tasks import start_task
from services.timeouts import STANDARD_TIMEOUTS
from services.transport.addresses import join_address, split_address
from services.transport.http2.server import Handler, StreamServer
from services.transport.ports.admission import ConnectionLimits, Refusal
from services.transport.security import Security
from services.transport.server import start_server

log = logging.getLogger("tiermesh")


@dataclass(frozen=True)
class DaemonOptions:
    """Options that every role has.

    Attributes:
        name: stable name of this role on this host, shown to people.
        listen: `HOST:PORT` of its gRPC server; port 0 means any free one.
        metrics_listen: `HOST:PORT` of its `/metrics`; port 0 means any free one.
        security: certificates, or the choice of plain text.
        log_level: lowest level that is logged.
        log_format: `text`, or `json` for one object per line.
        ready_file: file for name, process id and ports as JSON, written once the daemon serves; None for no file.
        exit_with_parent: whether the end of standard input stops the daemon.
        shared_memory: whether tensors may go through shared memory to peers on this host.
        timeline: steps to record in a timeline, and its folder; None for no timeline.
        tensor_port: port of the data streams, on the host of `listen`; 0 means any free one.
        people_listen: `HOST:PORT` for people that show a token in place of a certificate; empty for none.

    Raises:
        Refused: other daemons would refuse the name, or others could reach the daemon without TLS.
    """

    name: str
    listen: str
    metrics_listen: str
    security: Security
    log_level: str = "info"
    log_format: Literal["text", "json"] = "text"
    ready_file: Path | None = None
    exit_with_parent: bool = False
    shared_memory: bool = True
    timeline: TimelineOptions | None = None
    tensor_port: int = 0
    people_listen: str = ""

    def __post_init__(self) -> None:
        """Check name and addresses, so that bad ones are refused before anything is opened."""
        check_name("--name", self.name)
        self.security.refuse_exposed("--listen", self.listen)
        self.security.refuse_exposed("--metrics-listen", self.metrics_listen)


class AnyService(Protocol):
    """A role's service, which moves bytes, keeps time and persists effects."""

    async def start(self, tensor_port: int = 0) -> None:
        """Load what is on disk. Calls are answered from then on.

        Args:
            tensor_port: port of the data streams, which the service sends to its peers; 0 for none.
        """

    async def run(self) -> None:
        """Serve until cancelled; raise an error that ends the service."""

    async def stop(self) -> None:
        """Finish work under way, notify peers, and close files."""


class Service(AnyService, Protocol):
    """Service that is called by gRPC."""

    @property
    def service_names(self) -> tuple[str, ...]:
        """Full names of the gRPC services that the role offers."""

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return the handlers of these gRPC services."""


@runtime_checkable
class TensorService(Protocol):
    """Service whose data streams have a port of their own."""

    def tensor_methods(self) -> Mapping[str, Handler]:
        """Return the handlers of that port, by method."""


class MainPort(Protocol):
    """The open port of `--listen`."""

    @property
    def port(self) -> int:
        """Number of the port."""

    @property
    def people_port(self) -> int:
        """Port for people that show tokens; 0 if there is none."""

    def set_serving(self, serving: bool) -> None:
        """Set what health checks report: whether the role can do its work. Calls are served either way."""

    async def stop(self, grace_seconds: float) -> None:
        """Accept no new calls, give open ones `grace_seconds` to end, then cancel them."""


RunService = TypeVar("RunService", bound=AnyService)
OpenPort = Callable[
    [RunService, DaemonOptions, ConnectionLimits, Callable[[Refusal], None]], Awaitable[MainPort]
]
"""Opens the port of `--listen` for a service, within limits, and with a counter of refused connections."""


def run_role(
    role: str, options: DaemonOptions, build: Callable[[], tuple[Service, CollectorRegistry]]
) -> int:
    """Run a role that is called by gRPC until it ends or is stopped; see `run_service`."""
    return run_service(role, options, build, _open_grpc_port)


def run_service(
    role: str,
    options: DaemonOptions,
    build: Callable[[], tuple[RunService, CollectorRegistry]],
    open_port: OpenPort[RunService],
) -> int:
    """Run a role until it ends or is stopped.

    Args:
        role: name of the role, for the log.
        options: options from the command line.
        build: function that imports and constructs the service, and returns it with the registry of its metrics. It is
            called after memory and threads are set up, since that must happen before numpy is imported.
        open_port: function that opens the role's main port.

    Returns:
        Exit code: see `services.errors.ExitCode`.
    """
    logs.configure(options.log_level, options.log_format)
    if options.timeline is not None:
        timeline.start(options.timeline, role, options.name)
    tuned = process.tune_allocator()
    process.limit_blas_to_one_thread()
    log.debug("allocator %s", "tuned" if tuned else "not tuned")

    return process.run_daemon(
        lambda: _serve(role, options, build, open_port),
        exit_with_parent=options.exit_with_parent,
        ready_file=options.ready_file,
    )


async def _serve(
    role: str,
    options: DaemonOptions,
    build: Callable[[], tuple[RunService, CollectorRegistry]],
    open_port: OpenPort[RunService],
) -> None:
    failpoints.arm(os.environ)
    check_own_certificate(role, options.name, options.security)
    service, registry = build()
    certificate = CertificateWatch(options.security, registry, role)
    limits = limit_ports(raise_descriptor_limit())
    connections = ConnectionMetrics(registry, role)
    server = await open_port(service, options, limits.main, connections.counter_of("main"))
    tensors: StreamServer | None = None
    metrics: MetricsServer | None = None
    watching = start_task(certificate.run(), "watch of the own certificate")
    try:
        if isinstance(service, TensorService):
            tensors = await _start_tensors(options, service, limits, connections)
        metrics = start_metrics(
            options.metrics_listen,
            registry,
            options.security,
            limits=limits.metrics,
            count_refusal=connections.counter_of("metrics"),
        )
        await service.start(tensors.port if tensors else 0)
        try:
            server.set_serving(True)
            _announce(
                role,
                options,
                port=server.port,
                tensor_port=tensors.port if tensors else 0,
                metrics_port=metrics.port,
                people_port=server.people_port,
            )
            await service.run()
        finally:
            server.set_serving(False)
            await service.stop()
    finally:
        watching.cancel()
        timeline.stop()
        if tensors is not None:
            await tensors.stop(STANDARD_TIMEOUTS.grace)
        await server.stop(STANDARD_TIMEOUTS.grace)
        if metrics is not None:
            metrics.stop()


async def _open_grpc_port(
    service: Service,
    options: DaemonOptions,
    limits: ConnectionLimits,
    count_refusal: Callable[[Refusal], None],
) -> MainPort:
    return await start_server(
        options.listen,
        options.security,
        service.handlers(),
        service.service_names,
        limits=limits,
        count_refusal=count_refusal,
        people_listen=options.people_listen,
    )


def _announce(
    role: str, options: DaemonOptions, *, port: int, tensor_port: int, metrics_port: int, people_port: int
) -> None:
    """Log the ports that the role serves on, and write the ready file."""
    log.info(
        "%s %s serves on port %d%s%s, metrics on port %d",
        role,
        options.name,
        port,
        f", people with tokens on port {people_port}" if people_port else "",
        f", tensors on port {tensor_port}" if tensor_port else "",
        metrics_port,
    )
    if options.ready_file:
        ready = {
            "role": role,
            "name": options.name,
            "pid": os.getpid(),
            "port": port,
            "tensor_port": tensor_port,
            "metrics_port": metrics_port,
            "people_port": people_port,
        }
        process.write_ready_file(options.ready_file, ready)


async def _start_tensors(
    options: DaemonOptions, service: TensorService, limits: PortLimits, connections: ConnectionMetrics
) -> StreamServer:
    host, _ = split_address("listen address", options.listen)
    address = join_address(host, options.tensor_port)
    return await StreamServer.start(
        address,
        options.security,
        service.tensor_methods(),
        limits=limits.tensors,
        count_refusal=connections.counter_of("tensors"),
    )
