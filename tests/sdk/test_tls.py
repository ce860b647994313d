"""The clients over TLS, with certificates that `tiermesh certs` has made: whom they trust, and what else they say."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tiermesh
from cli.main import main
from protos import jobs_pb2
from services.transport.security import Security
from tests.support.certificates import make_authority, make_certificate
from tests.support.fake_aggregator import FakeAggregator, serving
from tests.support.web_server import Web, serving_web


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of certificates: one by the command, and those that it does not make."""
    folder = tmp_path_factory.mktemp("certs")
    made = [["init"], ["issue", "web", "head", "--host", "localhost"]]
    made += [["issue", "web", "elsewhere", "--host", "head.example"]]
    for words in made:
        assert main(["certs", *words, "--dir", str(folder)]) == 0
    make_certificate(folder, "expired", folder / "authority.pem", days=-1)
    make_authority(folder, "other")
    return folder


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeAggregator]:
    fake = FakeAggregator()
    fake.jobs["job-1"] = jobs_pb2.Job(id="job-1", state=jobs_pb2.SUCCEEDED, steps=10)
    with serving(fake):
        yield fake


@contextmanager
def server(tmp_path: Path, fake: FakeAggregator, certs: Path, name: str) -> Iterator[Web]:
    pair = certs / f"{name}.pem", certs / f"{name}.key"
    with serving_web(tmp_path, fake.address, own=Security(*pair)) as web:
        yield web


def ask(kind: str, url: str, token: str, ca: Path | None) -> Any:
    """Return a job and the kinds of its events."""
    if kind == "Client":
        with tiermesh.Client(url, token=token, ca=ca) as client:
            return client.get("job-1").id, [each.kind for each in client.follow("job-1")]

    async def run() -> Any:
        async with tiermesh.AsyncClient(url, token=token, ca=ca) as client:
            return (await client.get("job-1")).id, [each.kind async for each in client.follow("job-1")]

    return asyncio.run(run())


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_a_server_of_the_authority_is_trusted(
    tmp_path: Path, fake: FakeAggregator, certs: Path, kind: str
) -> None:
    with server(tmp_path, fake, certs, "web-head") as web:
        url = f"https://localhost:{web.port}"
        assert ask(kind, url, web.token, certs / "authority.pem") == ("job-1", ["state"])


def test_newer_pythons_trust_it_too(tmp_path: Path, fake: FakeAggregator, certs: Path) -> None:
    """Check the stricter rules that are Python's default from 3.13 on."""
    context = ssl.create_default_context(cafile=certs / "authority.pem")
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with server(tmp_path, fake, certs, "web-head") as web:
        connection = http.client.HTTPSConnection("localhost", web.port, timeout=10, context=context)
        connection.request("GET", "/v1/health")
        assert connection.getresponse().status == 200
        connection.close()


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
@pytest.mark.parametrize(
    ("name", "ca", "url", "field", "expected", "fix"),
    [
        (
            "web-head",
            "authority",
            "https://127.0.0.1",
            "url",
            "an address in the server's certificate",
            "--host ADDRESS",
        ),
        (
            "web-elsewhere",
            "authority",
            "https://localhost",
            "url",
            "a name in the server's certificate",
            "--host NAME",
        ),
        ("expired", "authority", "https://localhost", "url", "has not expired", "`tiermesh certs renew`"),
        ("web-head", "other", "https://localhost", "ca", "the authority that has signed", "authority.pem"),
        ("web-head", None, "https://localhost", "ca", "the authority that has signed", "authority.pem"),
        (None, "authority", "https://localhost", "url", "a server with TLS", "use http://"),
    ],
    ids=["address", "name", "expired", "authority", "system", "plain"],
)
def test_another_server_is_refused_with_the_reason_and_the_fix(
    tmp_path: Path,
    fake: FakeAggregator,
    certs: Path,
    kind: str,
    name: str | None,
    ca: str | None,
    url: str,
    field: str,
    expected: str,
    fix: str,
) -> None:
    authority = None if ca is None else certs / f"{ca}.pem"
    serving_it = server(tmp_path, fake, certs, name) if name else serving_web(tmp_path, fake.address)
    with serving_it as web, pytest.raises(tiermesh.Refused) as caught:
        ask(kind, f"{url}:{web.port}", web.token, authority)
    error = caught.value
    assert (error.field, error.value) == (field, f"{url}:{web.port}")
    assert expected in str(error.expected) and fix in str(error.fix)
    assert "\n" not in str(error) and web.token not in str(error)


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_plain_text_to_a_server_with_tls_is_no_answer(
    tmp_path: Path, fake: FakeAggregator, certs: Path, kind: str
) -> None:
    with server(tmp_path, fake, certs, "web-head") as web:
        with pytest.raises(tiermesh.Unreachable, match="check the address"):
            ask(kind, f"http://localhost:{web.port}", web.token, None)
        for ca in (tmp_path / "none.pem", Path(__file__)):
            with pytest.raises(tiermesh.Refused, match="a readable PEM file"):
                ask(kind, f"https://localhost:{web.port}", web.token, ca)
