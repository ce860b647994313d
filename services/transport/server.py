"""gRPC servers and channels of the roles, with the same health service, reflection, message limits and keepalive."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.errors import TiermeshError
from services.tasks import start_task
from services.transport.access.enforcement import AccessControl, AccessInterceptor
from services.transport.addresses import join_address, split_address
from services.transport.limits import (
    HEADER_LIST_BYTES,
    IDLE_SECONDS,
    KEEPALIVE_SECONDS,
    KEEPALIVE_TIMEOUT_SECONDS,
    MESSAGE_LIMIT_BYTES,
    OPENING_SECONDS,
)
from services.transport.ports.admission import ConnectionLimits, Refusal
from services.transport.ports.forwarded_port import CallerConnections, ForwardedPort
from services.transport.request_handlers import RequestParsingHandler
from services.transport.security import Security

# All other options keep gRPC's defaults; none of the alternatives measured faster.
_COMMON_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.keepalive_time_ms", int(KEEPALIVE_SECONDS * 1000)),
    ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_SECONDS * 1000)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

_STREAMS_OF_A_CONNECTION = 32
"""Largest number of calls of a connection. Further ones wait in the client; a role has less than ten at a time."""
MAIN_LIMITS = ConnectionLimits()
"""Limits of a main port whose process has descriptors enough."""
_DRAIN_SECONDS = 1.0
"""Longest time that a server that stops gives callers to read its last answers."""

_SERVER_OPTIONS = (
    *_COMMON_OPTIONS,
    # Below the clients' ping interval: a server's default of five minutes ends their connections
    # (too_many_pings).
    ("grpc.http2.min_ping_interval_without_data_ms", int(KEEPALIVE_SECONDS * 500)),
    # With SO_REUSEPORT two processes on one port would each get some of the calls.
    ("grpc.so_reuseport", 0),
    # From a connection to the end of its TLS handshake and its HTTP/2 settings.
    ("grpc.server_handshake_timeout_ms", int(OPENING_SECONDS * 1000)),
    # Clients with nothing to ask reconnect when they have.
    ("grpc.max_connection_idle_ms", int(IDLE_SECONDS * 1000)),
    ("grpc.max_concurrent_streams", _STREAMS_OF_A_CONNECTION),
    ("grpc.max_metadata_size", HEADER_LIST_BYTES // 2),
    ("grpc.absolute_max_metadata_size", HEADER_LIST_BYTES),
)

_CHANNEL_OPTIONS = (
    *_COMMON_OPTIONS,
    # Roles connect directly; a proxy for web traffic would break loopback.
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 3000),
)


class _HealthServicer(health.aio.HealthServicer):  # type: ignore[misc]  # grpc has no types
    """Health service with the method that the library's own leaves out."""

    async def List(  # noqa: N802
        self, request: health_pb2.HealthListRequest, context: object
    ) -> health_pb2.HealthListResponse:
        """Return the status of every service."""
        del request, context
        replies = {
            name: health_pb2.HealthCheckResponse(status=value) for name, value in self._server_status.items()
        }
        return health_pb2.HealthListResponse(statuses=replies)


class RoleServer:
    """A running gRPC server.

    Attributes:
        port: listening port; the chosen one if port 0 was asked for.
        people_port: port for people that show tokens; 0 if there is none.
    """

    def __init__(
        self,
        server: grpc.aio.Server,
        checks: health.aio.HealthServicer,
        names: Sequence[str],
        ports: Sequence[ForwardedPort],
        connections: CallerConnections,
    ) -> None:
        self.port = ports[0].port
        self.people_port = ports[1].port if len(ports) > 1 else 0
        self._server = server
        self._ports = ports
        self._connections = connections
        self._checks = checks
        self._names = ("", *names)

    def set_serving(self, serving: bool) -> None:
        """Set what health checks report: whether the role can do its work. Calls are served either way."""
        kinds = health_pb2.HealthCheckResponse
        status = kinds.SERVING if serving else kinds.NOT_SERVING
        for name in self._names:
            start_task(self._checks.set(name, status), f"health of {name or 'the server'}")

    async def stop(self, grace_seconds: float) -> None:
        """Accept no new calls, give open ones `grace_seconds` to end, then cancel them."""
        for port in self._ports:
            port.close()
        await self._checks.enter_graceful_shutdown()
        await self._server.stop(grace_seconds)
        await self._connections.drain(_DRAIN_SECONDS)


async def start_server(
    listen: str,
    security: Security,
    handlers: Sequence[grpc.GenericRpcHandler],
    service_names: Sequence[str],
    *,
    limits: ConnectionLimits = MAIN_LIMITS,
    count_refusal: Callable[[Refusal], None] = lambda refusal: None,
    people_listen: str = "",
) -> RoleServer:
    """Serve `handlers`, gRPC health and reflection on `HOST:PORT`. Health checks report NOT_SERVING at first.

    Args:
        listen: `HOST:PORT`; port 0 takes any free one.
        security: certificates, and the rule for listening without them.
        handlers: handlers of the role's services.
        service_names: full names of those services, as in the .proto files, for health and reflection.
        limits: how many connections each port accepts.
        count_refusal: callback for each connection that is not.
        people_listen: `HOST:PORT` for people that show a token in place of a certificate; empty for none.

    Raises:
        Refused: an address is wrong, or not allowed without TLS.
        NotYet: an address is in use, is none of this host, or its name does not resolve.
    """
    security.check_listen(listen)
    credentials = [security.server_credentials()]
    if people_listen:
        security.check_people_listen(people_listen)
        credentials.append(security.server_credentials(certificates=False))
    connections = CallerConnections()
    server = grpc.aio.server(
        interceptors=[AccessInterceptor(AccessControl(security), connections)],
        options=_SERVER_OPTIONS,
    )
    server.add_generic_rpc_handlers(tuple(RequestParsingHandler(each) for each in handlers))
    checks = _HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    reflection.enable_server_reflection(
        (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    addresses = [("listen address", listen, "main port")]
    if people_listen:
        addresses.append(("--people-listen", people_listen, "people's port"))
    ports: list[ForwardedPort] = []
    try:
        for name, address, log_name in addresses:
            ports.append(
                ForwardedPort(
                    name, address, log_name, connections, limits=limits, count_refusal=count_refusal
                )
            )
    except TiermeshError:
        for port in ports:
            port.close()
        raise
    for port, given in zip(ports, credentials, strict=True):
        if given is None:
            server.add_insecure_port(port.inner_address)
        else:
            server.add_secure_port(port.inner_address, given)
    role_server = RoleServer(server, checks, service_names, ports, connections)
    role_server.set_serving(False)
    await server.start()
    for port in ports:
        port.accept()
    return role_server


def open_channel(address: str, security: Security, *, own_connection: bool = False) -> grpc.aio.Channel:
    """Return a channel to `HOST:PORT`, which connects with its first call.

    Args:
        address: address of the peer.
        security: own certificates and trusted authorities; plain text without any.
        own_connection: whether the channel gets a TCP connection of its own. Otherwise all channels of this process to
            one address share one, and control messages wait behind tensors.

    Raises:
        Refused: the address is no `HOST:PORT`.
    """
    host, port = split_address("address", address)
    options = (
        (*_CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)) if own_connection else _CHANNEL_OPTIONS
    )
    credentials = security.channel_credentials()
    if credentials is None:
        return grpc.aio.insecure_channel(join_address(host, port), options=options)
    return grpc.aio.secure_channel(join_address(host, port), credentials, options=options)
