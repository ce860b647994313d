"""Security: listen addresses, trusted peers, and bad TLS files."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.errors import Refused
from services.transport.access.permissions import CallerKind
from services.transport.addresses import split_address
from services.transport.security import Security
from services.transport.server import open_channel, start_server
from tests.support.certificates import make_authority, make_certificate

LIMIT_SECONDS = 30


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for authority in ("ours", "theirs"):
        make_certificate(folder, f"{authority}-role", make_authority(folder, authority), CallerKind.WORKER)
    return folder


def security(files: Path, whose: str) -> Security:
    return Security(
        cert=files / f"{whose}-role.pem", key=files / f"{whose}-role.key", ca=files / f"{whose}.pem"
    )


async def check_health(server: Security, client: Security) -> int:
    """Return the status of a call between a client and a server with these settings."""
    role = await start_server("127.0.0.1:0", server, [], [])
    role.set_serving(True)
    try:
        async with open_channel(f"localhost:{role.port}", client) as channel:
            reply = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=LIMIT_SECONDS, wait_for_ready=False
            )
        return int(reply.status)
    finally:
        await role.stop(0)


def test_mutual_tls_accepts_only_peers_of_the_authority(files: Path) -> None:
    ours = security(files, "ours")
    assert asyncio.run(check_health(ours, ours)) == health_pb2.HealthCheckResponse.SERVING
    strangers = (
        security(files, "theirs"),
        Security(ca=files / "ours.pem"),  # shows no certificate
        Security(),  # plain text
    )
    for stranger in strangers:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            asyncio.run(check_health(ours, stranger))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("address", ["0.0.0.0:7070", "[::]:7070", "10.0.0.5:7070", "trainer.example:7070"])
def test_listening_beyond_loopback_needs_tls_or_insecure(
    address: str, files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Refused, match=r"neither TLS nor --insecure .* listen on 127.0.0.1"):
        Security().check_listen(address)
    with caplog.at_level(logging.WARNING):
        security(files, "ours").check_listen(address)
        assert not caplog.records
        Security(insecure=True).check_listen(address)
    assert "INSECURE" in caplog.text
    assert address in caplog.text


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:7070", "[::1]:7070", "127.8.8.8:1"])
def test_loopback_needs_no_tls_and_no_warning(address: str, caplog: pytest.LogCaptureFixture) -> None:
    Security().check_listen(address)
    Security(insecure=True).check_listen(address)
    assert not caplog.records


@pytest.mark.parametrize(
    "address", ["", "7070", "host:", ":7070", "host:http", "host:65536", "::1:7070", "h:-1"]
)
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(Refused, match="not HOST:PORT"):
        split_address("listen address", address)


def test_files_that_contradict_are_refused(files: Path, tmp_path: Path) -> None:
    cert, key, ca = files / "ours-role.pem", files / "ours-role.key", files / "ours.pem"
    junk = tmp_path / "junk.pem"
    junk.write_text("no PEM")
    with pytest.raises(Refused, match=r"--tls-cert .* given without --tls-key"):
        Security(cert=cert)
    with pytest.raises(Refused, match=r"--tls-key .* given without --tls-cert"):
        Security(key=key)
    with pytest.raises(Refused, match=r"--insecure: given together with TLS files"):
        Security(ca=ca, insecure=True)
    with pytest.raises(Refused, match=r"--tls-key: .*missing.key: no such file"):
        Security(cert=cert, key=tmp_path / "missing.key")
    with pytest.raises(Refused, match="no PEM certificate and its private key"):
        Security(cert=cert, key=files / "theirs-role.key")
    with pytest.raises(Refused, match=r"--tls-ca .*junk.pem: no PEM certificates"):
        Security(ca=junk)
    with pytest.raises(Refused, match="--tls-cert and --tls-key"):
        Security(ca=ca).server_credentials()
    with pytest.raises(Refused, match="--tls-cert and --tls-key"):
        Security(ca=ca).server_context()
    with pytest.raises(Refused, match=r"--revoked .*: given without --tls-ca"):
        Security(cert, key, revoked=junk)
    with pytest.raises(Refused, match=r"--tokens .*: given with --insecure"):
        Security(insecure=True, tokens=junk)
    with pytest.raises(Refused, match=r"--revoked .*: line 1: 'no', expected a serial number"):
        Security(cert, key, ca, revoked=junk)
    with pytest.raises(Refused, match=r"--tokens .*: line 1: expected ID KIND NAME EXPIRES SHA256"):
        Security(tokens=junk)
    with pytest.raises(Refused, match=r"--people-listen .*: given without --tokens"):
        Security(cert, key, ca).check_people_listen("127.0.0.1:0")
