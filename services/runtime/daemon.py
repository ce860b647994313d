"""The daemon around a role's service: opens its ports, says that it serves, runs it, stops it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import grpc
from prometheus_client import CollectorRegistry

from services.instrumentation import failpoints, timeline
from services.instrumentation.timeline import TimelineOptions
from services.runtime import logs, process
from services.runtime.metrics import start_metrics
from services.timeouts import STANDARD_TIMEOUTS
from services.transport.http2.server import Handler, StreamServer
from services.transport.security import Security, join_address, split_address
from services.transport.server import start_server

log = logging.getLogger("tiermesh")


@dataclass(frozen=True)
class DaemonOptions:
    """What every role is told.

    Attributes:
        name: stable name of this role on this host, for people.
        listen: `HOST:PORT` of its gRPC server; port 0 for any free one.
        metrics_listen: `HOST:PORT` of its `/metrics`; port 0 for any free one.
        security: certificates, or that plain text is wanted.
        log_level: lowest level shown.
        log_format: text, or json for one object a line.
        ready_file: where to write, as JSON, name, process id and ports once it serves.
        exit_with_parent: stop when standard input ends.
        tensor_port: that data streams have of their own, on the host of `listen`; 0 for any free one.
        shared_memory: whether tensors may go through shared memory to peers that see this process's.
        timeline: which steps to record what happens when of, and where to; None: none.
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


class Service(Protocol):
    """A role's service: what moves bytes, keeps time and persists effects."""

    @property
    def service_names(self) -> tuple[str, ...]:
        """Full names of the gRPC services that it offers."""

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Their handlers."""

    async def start(self) -> None:
        """Take up what is on disk; after it, calls are answered."""

    async def run(self) -> None:
        """Work until there is a reason to end: returns or raises it."""

    async def stop(self) -> None:
        """Finish what is under way, tell peers, close files."""


@runtime_checkable
class TensorService(Protocol):
    """A service whose data streams have a port of their own.

    Attributes:
        tensor_port: set before `start`; peers are told of it.
    """

    tensor_port: int

    def tensor_methods(self) -> Mapping[str, Handler]:
        """What is served there."""


def run_role(
    role: str, options: DaemonOptions, build: Callable[[], tuple[Service, CollectorRegistry]]
) -> int:
    """Run a role until it ends or is told to stop.

    Args:
        role: for the log.
        options: as the command line gave them.
        build: imports and makes the service and names the registry of its metrics; called once memory and threads
            are set up, which must be before numpy is imported.

    Returns:
        Exit code: 0 ended or stopped as asked, 2 refused, 1 anything else.
    """
    logs.configure(options.log_level, options.log_format)
    if options.timeline is not None:
        timeline.start(options.timeline, role, options.name)
    tuned = process.tune_allocator()
    process.limit_blas_to_one_thread()
    log.debug("allocator %s", "tuned" if tuned else "left as it is")

    async def serve() -> None:
        failpoints.arm(os.environ)
        service, registry = build()
        # Compiling takes seconds the first time on a host, which no step shall wait for; it must follow the set-up too.
        from services.tensors.kernels import arithmetic

        arithmetic.load_kernels()
        server = await start_server(
            options.listen, options.security, service.handlers(), service.service_names
        )
        tensors: StreamServer | None = None
        try:
            if isinstance(service, TensorService):
                tensors = await _start_tensors(options, service)
            metrics_port = start_metrics(options.metrics_listen, registry, options.security)
            await service.start()
            try:
                server.set_serving(True)
                log.info(
                    "%s %s serves on port %d%s, metrics on port %d",
                    role,
                    options.name,
                    server.port,
                    f", tensors on port {tensors.port}" if tensors else "",
                    metrics_port,
                )
                if options.ready_file:
                    ready = {
                        "role": role,
                        "name": options.name,
                        "pid": os.getpid(),
                        "port": server.port,
                        "tensor_port": tensors.port if tensors else 0,
                        "metrics_port": metrics_port,
                    }
                    process.write_ready_file(options.ready_file, ready)
                await service.run()
            finally:
                server.set_serving(False)
                await service.stop()
        finally:
            timeline.stop()
            if tensors is not None:
                await tensors.stop(STANDARD_TIMEOUTS.grace)
            await server.stop(STANDARD_TIMEOUTS.grace)

    return process.run_daemon(serve, exit_with_parent=options.exit_with_parent)


async def _start_tensors(options: DaemonOptions, service: TensorService) -> StreamServer:
    host, _ = split_address("listen address", options.listen)
    address = join_address(host, options.tensor_port)
    tensors = await StreamServer.start(address, options.security, service.tensor_methods())
    service.tensor_port = tensors.port
    return tensors
