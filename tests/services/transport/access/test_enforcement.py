"""Callers over time: renewed, expired and revoked certificates and tokens, on real ports with TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import cluster_pb2 as pb
from services.protocol.checksums import encode_with_checksum
from services.protocol.envelope import unwrap, wrap
from services.transport.access import rechecks
from services.transport.access.enforcement import (
    AUTHORIZATION_KEY,
    AccessControl,
    Credentials,
    Denied,
    authorization,
    current_caller,
)
from services.transport.access.identity import identify
from services.transport.access.permissions import READ_METRICS, CallerKind
from services.transport.access.tokens import make_token
from services.transport.control.attend_server import serve_attend
from services.transport.http2.client import open_stream
from services.transport.http2.server import StreamServer
from services.transport.security import Security
from services.transport.server import open_channel, start_server
from tests.support.certificates import make_authority, make_certificate, make_certificates

ATTEND, EXCHANGE, WATCH = "/tiermesh.Cluster/Attend", "/tiermesh.Cluster/Exchange", "/tiermesh.Jobs/Watch"
SOON_SECONDS = 0.05
LIMIT_SECONDS = 20


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return make_certificates(tmp_path)


@pytest.fixture(autouse=True)
def checked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rechecks, "CHECK_AGAIN_SECONDS", SOON_SECONDS)


def security(files: Path, name: str, **settings: Any) -> Security:
    return Security(files / f"{name}.pem", files / f"{name}.key", files / "authority.pem", **settings)


async def stay(_: Any, context: Any) -> None:
    """Answer with the caller, and keep the stream open."""
    await context.write(f"{current_caller().kind} {current_caller().person}".encode())
    await asyncio.Event().wait()


async def stay_and_yield(_: Any, context: Any) -> AsyncIterator[bytes]:
    yield current_caller().person.encode()
    await asyncio.Event().wait()


@asynccontextmanager
async def serving(server: Security, people_listen: str = "") -> AsyncIterator[tuple[int, int, int]]:
    """Run both kinds of servers; yield their ports: main, people's, tensors'."""
    handlers = [
        grpc.method_handlers_generic_handler(
            "tiermesh.Cluster", {"Attend": grpc.stream_stream_rpc_method_handler(stay)}
        ),
        grpc.method_handlers_generic_handler(
            "tiermesh.Jobs", {"Watch": grpc.unary_stream_rpc_method_handler(stay_and_yield)}
        ),
    ]
    role = await start_server("127.0.0.1:0", server, handlers, [], people_listen=people_listen)
    tensors = await StreamServer.start("127.0.0.1:0", server, {EXCHANGE: lambda stream: stay(None, stream)})
    try:
        yield role.port, role.people_port, tensors.port
    finally:
        await tensors.stop(0)
        await role.stop(0)


async def end_of(call: Any) -> tuple[grpc.StatusCode, str]:
    code = await asyncio.wait_for(call.code(), LIMIT_SECONDS)
    return code, await call.details()


def revoke(files: Path, name: str, lines: str = "") -> Path:
    path = files / "revoked.txt"
    serial = identify((files / f"{name}.pem").read_bytes()).serial if name else 1
    path.write_text(f"# revoked\n{lines}{serial:x} {name}\n")
    return path


def test_streams_of_a_revoked_certificate_end_and_new_calls_are_refused(files: Path) -> None:
    server = security(files, "aggregator", revoked=revoke(files, ""))

    async def test() -> None:
        async with (
            serving(server) as (main, _, tensors),
            open_channel(f"localhost:{main}", security(files, "worker")) as channel,
            open_channel(f"localhost:{main}", security(files, "person")) as people,
        ):
            attend = channel.stream_stream(ATTEND)()
            assert await attend.read() == b"CallerKind.WORKER "
            watch = people.unary_stream(WATCH)(b"")
            assert await watch.read() == b"person"
            exchange = await open_stream(f"localhost:{tensors}", security(files, "worker"), EXCHANGE)
            assert bytes(await exchange.read() or b"") == b"CallerKind.WORKER "

            revoke(files, "worker")
            for call in (attend, exchange, channel.stream_stream(ATTEND)()):
                code, details = await end_of(call)
                assert code is grpc.StatusCode.UNAUTHENTICATED
                assert "was revoked" in details
            again = await open_stream(f"localhost:{tensors}", security(files, "worker"), EXCHANGE)
            assert (await end_of(again))[0] is grpc.StatusCode.UNAUTHENTICATED
            again.cancel()
            exchange.cancel()

            assert not watch.done(), "the others go on"
            revoke(files, "person")
            code, details = await end_of(watch)
            assert (code, "was revoked" in details) == (grpc.StatusCode.UNAUTHENTICATED, True)

    asyncio.run(test())


def test_streams_of_a_revoked_token_end(files: Path) -> None:
    token, record = make_token(CallerKind.PERSON, "alice", 4e9)
    path = files / "tokens.txt"
    path.write_text(record.to_line())

    async def test() -> None:
        async with serving(security(files, "aggregator", tokens=path), "127.0.0.1:0") as (_, people, __):
            metadata = ((AUTHORIZATION_KEY, authorization(token)),)
            async with open_channel(f"localhost:{people}", Security(ca=files / "authority.pem")) as channel:
                watch = channel.unary_stream(WATCH)(b"", metadata=metadata)
                assert await watch.read() == b"alice"
                path.write_text("")
                assert (await end_of(watch))[0] is grpc.StatusCode.UNAUTHENTICATED
                again = channel.unary_stream(WATCH)(b"", metadata=metadata)
                assert (await end_of(again))[0] is grpc.StatusCode.UNAUTHENTICATED

    asyncio.run(test())


@pytest.mark.parametrize("what", ["certificate", "token"])
def test_streams_end_when_what_was_shown_expires(files: Path, what: str) -> None:
    now = 1e9
    token, record = make_token(CallerKind.PERSON, "alice", now + 10)
    (files / "tokens.txt").write_text(record.to_line())
    certificate = (files / "person.pem").read_bytes()
    if what == "certificate":
        now = identify(certificate).expires_seconds - 10
    shown = (
        Credentials(tls=True, certificate=certificate)
        if what == "certificate"
        else Credentials(tls=True, authorization=authorization(token))
    )
    access = AccessControl(security(files, "aggregator", tokens=files / "tokens.txt"), clock=lambda: now)

    async def test() -> None:
        nonlocal now
        caller = access.admit(WATCH, shown)
        with pytest.raises(Denied, match="has expired; renew it"):
            async with access.watch(caller):
                await asyncio.sleep(4 * SOON_SECONDS)
                now += 10
                await asyncio.wait_for(asyncio.Event().wait(), LIMIT_SECONDS)

    asyncio.run(test())
    with pytest.raises(Denied, match="has expired"):
        access.admit(WATCH, shown)


def test_an_expired_certificate_is_refused_in_the_handshake(files: Path) -> None:
    make_certificate(files, "worker", files / "authority.pem", CallerKind.WORKER, days=-1)

    async def test() -> None:
        async with serving(security(files, "aggregator")) as (main, _, tensors):
            async with open_channel(f"localhost:{main}", security(files, "worker")) as channel:
                assert (await end_of(channel.stream_stream(ATTEND)(timeout=LIMIT_SECONDS)))[
                    0
                ] is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(grpc.aio.AioRpcError):
                await open_stream(f"localhost:{tensors}", security(files, "worker"), EXCHANGE)

    asyncio.run(test())


async def trusted(ports: tuple[int, int, int], client: Security) -> tuple[bool, bool]:
    """Return whether a client can talk to the main port and to the tensor port."""
    async with open_channel(f"localhost:{ports[0]}", client, own_connection=True) as channel:
        attend = channel.stream_stream(ATTEND)(timeout=LIMIT_SECONDS)
        try:
            main = isinstance(await attend.read(), bytes)
        except grpc.aio.AioRpcError:
            main = False
    try:
        stream = await open_stream(f"localhost:{ports[2]}", client, EXCHANGE)
        tensors = await stream.read() is not None
        stream.cancel()
    except grpc.aio.AioRpcError:
        tensors = False
    return main, tensors


def test_renewed_files_are_used_without_a_restart(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    server, client = security(files, "aggregator"), security(files, "worker")

    async def test() -> None:
        async with serving(server) as ports:
            assert await trusted(ports, client) == (True, True)
            # A new authority: the server must use its new certificate and key, and trust the new authority only.
            old = files / "old"
            old.mkdir()
            for name in ("authority.pem", "worker.pem", "worker.key"):
                (old / name).write_bytes((files / name).read_bytes())
            authority = make_authority(files, "authority")
            make_certificate(files, "aggregator", authority, CallerKind.AGGREGATOR)
            make_certificate(files, "worker", authority, CallerKind.WORKER)
            assert await trusted(ports, client) == (True, True)
            assert await trusted(ports, security(old, "worker")) == (False, False)
            # Half of a renewal, or junk: what was read before stays in use.
            key = (files / "aggregator.key").read_bytes()
            for wrong in ((old / "worker.key").read_bytes(), b"junk"):
                (files / "aggregator.key").write_bytes(wrong)
                assert await trusted(ports, client) == (True, True)
            (files / "aggregator.key").unlink()
            assert await trusted(ports, client) == (True, True)
            (files / "aggregator.key").write_bytes(key)
            assert await trusted(ports, client) == (True, True)

    asyncio.run(test())
    assert "what was read before stays in use" in caplog.text


def test_a_damaged_list_keeps_what_was_read_before(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    access = AccessControl(security(files, "aggregator", revoked=revoke(files, "metrics")))
    shown = Credentials(tls=True, certificate=(files / "metrics.pem").read_bytes())
    damage: list[Callable[[], object]] = [
        lambda: (files / "revoked.txt").write_text("no number\n"),
        (files / "revoked.txt").unlink,
        (files / "revoked.txt").mkdir,
    ]
    for break_it in (lambda: None, *damage):
        break_it()
        with pytest.raises(Denied, match="was revoked"):
            access.admit(READ_METRICS, shown)
    assert caplog.text.count("what was read before stays in use") == len(damage)


def test_refused_calls_are_logged_at_a_bounded_rate(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    access = AccessControl(security(files, "aggregator"))
    shown = Credentials(tls=True, certificate=(files / "worker.pem").read_bytes())
    for _ in range(50):
        with pytest.raises(Denied, match="not allowed for worker"):
            access.admit(WATCH, shown)
    assert caplog.text.count(f"refused a call of {WATCH}") == 1
    assert "not allowed for worker worker (certificate " in caplog.text
    with pytest.raises(Denied, match="neither a certificate"):
        access.admit("/x\n2026 ERROR", Credentials(tls=True))
    assert "refused a call of /x\\n2026 ERROR: neither" in caplog.text, "another kind has a line of its own"


@pytest.mark.parametrize("uri", ["tiermesh:role/boss/x", "tiermesh:role/worker/", "tiermesh:role/worker/a b"])
def test_a_certificate_with_a_wrong_role_is_refused(
    files: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.certs.authority.role_uri", lambda kind, name: uri)
    cert, _ = make_certificate(files, "odd", files / "authority.pem", CallerKind.WORKER)
    access = AccessControl(security(files, "aggregator"))
    with pytest.raises(Denied) as caught:
        access.admit(WATCH, Credentials(tls=True, certificate=cert.read_bytes()))
    assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED


async def attend_as(
    files: Path, certificate: str, role: str, name: str
) -> tuple[grpc.StatusCode, str, list[str]]:
    """Send a Hello; return the status of the call, its text, and the names that were let in."""
    accepted: list[str] = []

    async def attend(_: Any, context: Any) -> None:
        async def serve(hello: pb.Hello, stream: Any) -> None:
            accepted.append(hello.name)

        await serve_attend(context, pb.WorkerMessage, unwrap=unwrap, check=lambda hello: None, serve=serve)

    handler = grpc.method_handlers_generic_handler(
        "tiermesh.Cluster", {"Attend": grpc.stream_stream_rpc_method_handler(attend)}
    )
    server = await start_server("127.0.0.1:0", security(files, "aggregator"), [handler], [])
    try:
        async with open_channel(f"localhost:{server.port}", security(files, certificate)) as channel:
            hello = encode_with_checksum(wrap(pb.WorkerMessage, 1, pb.Hello(role=role, name=name)))
            return *await end_of(channel.unary_stream(ATTEND)(hello)), accepted
    finally:
        await server.stop(0)


@pytest.mark.parametrize("role", ["worker", "aggregator", "", "boss"])
def test_the_role_of_a_hello_is_that_of_the_certificate(files: Path, role: str) -> None:
    code, details, accepted = asyncio.run(attend_as(files, "worker", role, "w"))
    if role == "worker":
        assert (code, accepted) == (grpc.StatusCode.OK, ["w"])
    else:
        assert (code, accepted) == (grpc.StatusCode.PERMISSION_DENIED, [])
        assert "but its sender is worker worker (certificate " in details
        assert len(details) <= 300


@pytest.mark.parametrize("bound", [(), ("w1",), ("w2",), ("w1", "w2"), ("w1", "w2", "w3", "w4")])
@pytest.mark.parametrize("name", ["w1", "w2", "", "W1", "w1\x1b[2J" + "x" * 500])
def test_the_name_of_a_hello_is_one_of_the_certificate(
    files: Path, bound: tuple[str, ...], name: str
) -> None:
    make_certificate(files, "bound", files / "authority.pem", CallerKind.WORKER, bound_names=bound)
    code, details, accepted = asyncio.run(attend_as(files, "bound", "worker", name))
    if not bound or name in bound:
        assert (code, len(accepted)) == (grpc.StatusCode.OK, 1)
    else:
        assert (code, accepted) == (grpc.StatusCode.PERMISSION_DENIED, [])
        assert f"shows a certificate that is bound to {bound[0]}" in details
        assert details.isprintable()
        assert len(details) <= 300


@given(st.text() | st.from_regex(r"(Bearer )?tm_[0-9a-f]{8}_[0-9a-f]{64}", fullmatch=True))
def test_any_authorization_is_denied_or_known(text: str) -> None:
    access = AccessControl(Security())
    with pytest.raises(Denied, match="not known here"):
        access.admit(WATCH, Credentials(tls=True, authorization=text))


def test_junk_in_place_of_a_certificate_is_refused(files: Path) -> None:
    access = AccessControl(security(files, "aggregator"))
    for junk in (b"", b"x", b"-----BEGIN CERTIFICATE-----\n"):
        with pytest.raises(Denied, match="can't be read"):
            access.admit(WATCH, Credentials(tls=True, certificate=junk))
