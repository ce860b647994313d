"""The table of permissions, cell by cell: each kind of caller calls each method of each service, on real ports."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from services.runtime.metrics import WorkerMetrics
from services.runtime.metrics_server import start_metrics
from services.transport.access.enforcement import (
    AUTHORIZATION_KEY,
    AccessControl,
    Caller,
    Credentials,
    Denied,
    authorization,
    check_permission,
)
from services.transport.access.permissions import (
    CANCEL_OTHERS_JOB,
    FILES_OF_AGGREGATOR,
    FILES_OF_DAEMON,
    PAUSE_OTHERS_JOB,
    PERMISSIONS,
    PRUNE_OTHERS_JOB,
    RAISE_PRIORITY,
    READ_CHECKPOINTS,
    READ_FILES,
    READ_METRICS,
    RESUME_OTHERS_JOB,
    SEND_CODE,
    SET_PRIORITY_OF_OTHERS_JOB,
    TRUST_IN_OTHERS_JOB,
    CallerKind,
)
from services.transport.access.tokens import TOKEN_KINDS, make_token
from services.transport.http2.client import open_stream
from services.transport.http2.server import StreamServer
from services.transport.security import Security
from services.transport.server import open_channel, start_server
from tests.support.certificates import make_authority, make_certificate, make_certificates
from tests.support.services import OWN_METHODS, methods_of, own_services

REACHED = "the handler was reached"
DENIED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
NO_RPCS = {
    READ_METRICS,
    CANCEL_OTHERS_JOB,
    PAUSE_OTHERS_JOB,
    RESUME_OTHERS_JOB,
    SET_PRIORITY_OF_OTHERS_JOB,
    RAISE_PRIORITY,
    SEND_CODE,
    TRUST_IN_OTHERS_JOB,
    PRUNE_OTHERS_JOB,
    FILES_OF_AGGREGATOR,
    FILES_OF_DAEMON,
    READ_FILES,
    READ_CHECKPOINTS,
}


HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
METHODS = [*OWN_METHODS, *methods_of([HEALTH, REFLECTION])]
TENSOR_METHODS = [method for method in OWN_METHODS if method.endswith(("/Exchange", "/MeasureLink", "/Pass"))]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_certificates(tmp_path_factory.mktemp("certificates"))
    make_certificate(folder, "nobody", folder / "authority.pem")
    make_certificate(folder, "stranger", make_authority(folder, "other"), CallerKind.ADMIN)
    return folder


def security(files: Path, name: str, **settings: Any) -> Security:
    return Security(files / f"{name}.pem", files / f"{name}.key", files / "authority.pem", **settings)


async def reach(_: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.OUT_OF_RANGE, REACHED)


def stub_handlers() -> list[grpc.GenericRpcHandler]:
    """Return handlers of every own service, which answer that they were reached."""
    return [
        grpc.method_handlers_generic_handler(
            service.full_name,
            {method.name: grpc.stream_stream_rpc_method_handler(reach) for method in service.methods},
        )
        for service in own_services()
    ]


@dataclass
class Ports:
    main: int
    people: int
    tensors: int


@asynccontextmanager
async def serving(server: Security, people_listen: str = "") -> AsyncIterator[Ports]:
    """Run the servers that every role has, with stubs of all services."""
    role = await start_server("127.0.0.1:0", server, stub_handlers(), [], people_listen=people_listen)

    async def handle(stream: Any) -> None:
        await reach(None, stream)

    tensors = await StreamServer.start("127.0.0.1:0", server, dict.fromkeys(TENSOR_METHODS, handle))
    try:
        yield Ports(role.port, role.people_port, tensors.port)
    finally:
        await tensors.stop(0)
        await role.stop(0)


async def call(
    port: int, client: Security, methods: list[str], token: str = ""
) -> dict[str, grpc.StatusCode]:
    """Call methods of a gRPC server; return the status of each."""
    metadata = ((AUTHORIZATION_KEY, authorization(token)),) if token else ()
    outcomes = {}
    async with open_channel(f"localhost:{port}", client) as channel:
        for method in methods:
            # Sent with the call, so that it can't be refused before: grpcio then hides the reason.
            stream = channel.unary_stream(method)(b"", metadata=metadata, timeout=30)
            try:
                if isinstance(
                    await stream.read(), bytes
                ):  # the health service's answer; Watch goes on for ever
                    stream.cancel()
                    outcomes[method] = grpc.StatusCode.OK
                    continue
            except grpc.aio.AioRpcError:
                pass
            outcomes[method] = await stream.code()
            if outcomes[method] is grpc.StatusCode.OUT_OF_RANGE:
                assert await stream.details() == REACHED
    return outcomes


async def call_tensor_port(port: int, client: Security, method: str) -> grpc.StatusCode:
    stream = await open_stream(f"localhost:{port}", client, method)
    try:
        return await stream.code()
    finally:
        stream.cancel()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def reached(outcome: grpc.StatusCode) -> bool:
    """Return whether a call has passed the check."""
    return outcome not in (*DENIED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_every_method_has_a_row_and_every_row_a_method() -> None:
    assert set(PERMISSIONS) == set(METHODS) | NO_RPCS


@pytest.mark.parametrize("kind", CallerKind)
def test_each_kind_may_call_what_its_cells_say(files: Path, kind: CallerKind) -> None:
    async def test() -> None:
        async with serving(security(files, "aggregator")) as ports:
            client = security(files, kind.value)
            outcomes = await call(ports.main, client, METHODS)
            for method in METHODS:
                assert reached(outcomes[method]) == (kind in PERMISSIONS[method]), (method, outcomes[method])
                if kind not in PERMISSIONS[method]:
                    assert outcomes[method] is grpc.StatusCode.PERMISSION_DENIED
            for method in TENSOR_METHODS:
                outcome = await call_tensor_port(ports.tensors, client, method)
                assert reached(outcome) == (kind in PERMISSIONS[method]), (method, outcome)

    run(test)


@pytest.mark.parametrize("kind", CallerKind)
def test_rows_that_are_no_methods(files: Path, kind: CallerKind) -> None:
    access = AccessControl(security(files, "aggregator"))
    shown = Credentials(tls=True, certificate=(files / f"{kind.value}.pem").read_bytes())
    for row, check in (
        (READ_METRICS, lambda: access.admit(READ_METRICS, shown)),
        (CANCEL_OTHERS_JOB, lambda: check_permission(CANCEL_OTHERS_JOB, Caller(kind, "x"))),
        (PAUSE_OTHERS_JOB, lambda: check_permission(PAUSE_OTHERS_JOB, Caller(kind, "x"))),
        (RESUME_OTHERS_JOB, lambda: check_permission(RESUME_OTHERS_JOB, Caller(kind, "x"))),
        (SET_PRIORITY_OF_OTHERS_JOB, lambda: check_permission(SET_PRIORITY_OF_OTHERS_JOB, Caller(kind, "x"))),
        (RAISE_PRIORITY, lambda: check_permission(RAISE_PRIORITY, Caller(kind, "x"))),
        (SEND_CODE, lambda: check_permission(SEND_CODE, Caller(kind, "x"))),
        (TRUST_IN_OTHERS_JOB, lambda: check_permission(TRUST_IN_OTHERS_JOB, Caller(kind, "x"))),
        (PRUNE_OTHERS_JOB, lambda: check_permission(PRUNE_OTHERS_JOB, Caller(kind, "x"))),
        (FILES_OF_AGGREGATOR, lambda: check_permission(FILES_OF_AGGREGATOR, Caller(kind, "x"))),
        (FILES_OF_DAEMON, lambda: check_permission(FILES_OF_DAEMON, Caller(kind, "x"))),
        (READ_FILES, lambda: check_permission(READ_FILES, Caller(kind, "x"))),
        (READ_CHECKPOINTS, lambda: check_permission(READ_CHECKPOINTS, Caller(kind, "x"))),
    ):
        if kind in PERMISSIONS[row]:
            check()
        else:
            with pytest.raises(Denied) as caught:
                check()
            assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("name", [*(kind.value for kind in CallerKind), "nobody"])
def test_metrics_are_for_those_that_may_read_them(files: Path, name: str) -> None:
    server = start_metrics("127.0.0.1:0", WorkerMetrics().registry, security(files, "worker"))
    context = ssl.create_default_context(cafile=files / "authority.pem")
    context.load_cert_chain(files / f"{name}.pem", files / f"{name}.key")
    allowed = {kind.value for kind in PERMISSIONS[READ_METRICS]}
    connection = http.client.HTTPSConnection("localhost", server.port, timeout=30, context=context)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert answer.status == (200 if name in allowed else 403)
        assert (b"tiermesh_" in answer.read()) == (name in allowed)
    finally:
        connection.close()
        server.stop()


@pytest.mark.parametrize("kind", TOKEN_KINDS)
def test_a_token_may_call_what_its_kind_may(files: Path, tmp_path: Path, kind: CallerKind) -> None:
    token, record = make_token(kind, "alice", 4e9)
    (tmp_path / "tokens.txt").write_text(record.to_line())
    server = security(files, "aggregator", tokens=tmp_path / "tokens.txt")

    async def test() -> None:
        async with serving(server, "127.0.0.1:0") as ports:
            client = Security(ca=files / "authority.pem")
            outcomes = await call(ports.people, client, METHODS, token)
            for method in METHODS:
                assert reached(outcomes[method]) == (kind in PERMISSIONS[method]), (method, outcomes[method])
            for others in ("", token[:-1] + ("0" if token[-1] != "0" else "1"), "x", "tm_" + "0" * 73):
                outcomes = await call(ports.people, client, METHODS, others)
                assert set(outcomes.values()) == {grpc.StatusCode.UNAUTHENTICATED}
            outcomes = await call(ports.main, client, OWN_METHODS[:1], token)
            assert set(outcomes.values()) == {grpc.StatusCode.UNAVAILABLE}, "this port asks for certificates"

    run(test)


def test_certificates_of_a_stranger_are_refused_in_the_handshake(files: Path) -> None:
    async def test() -> None:
        async with serving(security(files, "aggregator")) as ports:
            stranger = security(files, "stranger")
            outcomes = await call(ports.main, stranger, OWN_METHODS[:1])
            assert set(outcomes.values()) == {grpc.StatusCode.UNAVAILABLE}
            with pytest.raises(grpc.aio.AioRpcError):
                await call_tensor_port(ports.tensors, stranger, TENSOR_METHODS[0])

    run(test)


def test_a_certificate_without_a_role(files: Path) -> None:
    async def test() -> None:
        async with serving(security(files, "aggregator")) as ports:
            nobody = security(files, "nobody")
            outcomes = await call(ports.main, nobody, METHODS)
            assert set(outcomes.values()) == {grpc.StatusCode.UNAUTHENTICATED}
            outcome = await call_tensor_port(ports.tensors, nobody, TENSOR_METHODS[0])
            assert outcome is grpc.StatusCode.UNAUTHENTICATED

    run(test)


def test_without_tls_everything_is_allowed_on_loopback(tmp_path: Path) -> None:
    token, record = make_token(CallerKind.PERSON, "alice", 4e9)
    (tmp_path / "tokens.txt").write_text(record.to_line())

    async def test() -> None:
        async with serving(Security(tokens=tmp_path / "tokens.txt")) as ports:
            assert all(map(reached, (await call(ports.main, Security(), METHODS)).values()))
            assert reached(await call_tensor_port(ports.tensors, Security(), TENSOR_METHODS[0]))
            outcomes = await call(ports.main, Security(), ["/tiermesh.Jobs/Submit"], token)
            assert set(map(reached, outcomes.values())) == {True}
            outcomes = await call(ports.main, Security(), ["/tiermesh.Jobs/Submit"], "wrong")
            assert set(outcomes.values()) == {grpc.StatusCode.UNAUTHENTICATED}

    run(test)


def test_tls_without_an_authority_lets_in_tokens_only(files: Path) -> None:
    async def test() -> None:
        server = Security(files / "aggregator.pem", files / "aggregator.key")
        async with serving(server) as ports:
            outcomes = await call(ports.main, Security(ca=files / "authority.pem"), METHODS)
            assert set(outcomes.values()) == {grpc.StatusCode.UNAUTHENTICATED}

    run(test)


def test_a_method_without_a_row_is_refused_to_all() -> None:
    for kind in CallerKind:
        with pytest.raises(Denied, match="only for none"):
            check_permission("/tiermesh.Jobs/New", Caller(kind, "x"))


@pytest.mark.parametrize("kind", CallerKind)
def test_refusals_are_one_short_line(kind: CallerKind) -> None:
    with pytest.raises(Denied) as caught:
        check_permission("/tiermesh.Jobs/" + "x" * 500, Caller(kind, "n" * 64, serial=2**159))
    assert len(str(caught.value)) <= 300
    assert str(caught.value).isprintable()
