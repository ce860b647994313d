"""What is refused before a path is looked up: foreign names, pages and forms, wrong tokens, too much of anything."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http.client
import resource
import select
import socket
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

import tiermesh
from services.transport.access.tokens import draw_token
from services.transport.ports.admission import ConnectionLimits
from tests.support.cluster.daemon import eventually
from tests.support.fake_aggregator import FakeAggregator
from tests.support.web_server import Web, serving_web
from web.port import MOST_CONNECTIONS, PENDING_OF_ADDRESS


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "127.0.0.1@evil.example", "[::", ""]
)
def test_a_name_that_another_page_has_pointed_here_is_refused(web: Web, host: str) -> None:
    with socket.create_connection(("127.0.0.1", web.port), 10) as connection:
        request = f"GET /v1/health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        connection.sendall(request.encode())
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 4")
    assert b'"ok"' not in answer


@pytest.mark.parametrize(
    "target",
    [
        "/v1/../../etc/passwd",
        "//etc/passwd",
        "/v1/jobs/../cluster",
        "/v1/%2e%2e/%2e%2e/etc/passwd",
        "*",
        "http://evil.example/v1/cluster",
        "/v1\\cluster",
        "/V1/cluster",
        "/v1/cluster/",
    ],
)
def test_a_target_is_no_path_of_this_host(web: Web, target: str) -> None:
    with socket.create_connection(("127.0.0.1", web.port), 10) as connection:
        head = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {web.token}\r\n"
        connection.sendall(f"{head}Connection: close\r\n\r\n".encode())
        assert connection.makefile("rb").read()[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 404")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9", "[::1]:80", "LOCALHOST:1"])
def test_names_of_this_host_are_served(web: Web, host: str) -> None:
    assert web.get("/v1/health", Host=host).status == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1"])
def test_the_page_of_another_origin_is_refused(web: Web, origin: str) -> None:
    answer = web.call("POST", "/v1/jobs/job-1/pause", {}, {"Origin": origin})
    assert (answer.status, answer.kind, answer.json["field"]) == (403, "forbidden", "Origin")


@pytest.mark.parametrize(
    "media_type", ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain", ""]
)
def test_a_form_is_refused(web: Web, fake: FakeAggregator, media_type: str) -> None:
    answer = web.call("POST", "/v1/jobs/job-1/cancel", b'{"now": true}', {"Content-Type": media_type})
    assert (answer.status, answer.kind) == (415, "media-type")
    assert fake.jobs["job-1"].detail == ""


@pytest.mark.parametrize("shown", ["", "Bearer", "Bearer x", "Basic dXNlcjpwYXNz", "Bearer tm_1_2"])
def test_a_missing_or_malformed_token_is_refused(web: Web, shown: str) -> None:
    answer = web.get("/v1/jobs", Authorization=shown)
    assert (answer.status, answer.kind) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_another_token_is_the_aggregators_to_refuse(web: Web) -> None:
    answer = web.call("GET", "/v1/cluster", token=draw_token())
    assert (answer.status, answer.kind) == (401, "unauthenticated")
    assert "not known here" in answer.json["detail"]


def test_an_address_tries_few_tokens_and_those_with_one_go_on(web: Web) -> None:
    assert web.get("/v1/cluster").status == 200
    statuses = [web.call("GET", "/v1/cluster", token=draw_token()).status for _ in range(35)]
    assert statuses[:30] == [401] * 30
    assert 429 in statuses
    assert web.get("/v1/cluster").status == 200


def test_a_token_asks_so_often_and_is_told_when_to_come_back(
    fake: FakeAggregator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.guard.REQUESTS_AT_ONCE", 3)
    monkeypatch.setattr("web.guard.REQUESTS_PER_SECOND", 0.01)
    with serving_web(tmp_path, fake.address) as web:
        assert [web.get("/v1/cluster").status for _ in range(3)] == [200] * 3
        refused = web.get("/v1/cluster")
    assert (refused.status, refused.kind) == (429, "rate")
    assert int(refused.headers["retry-after"]) >= 1


def test_a_header_that_is_given_twice_is_refused(web: Web) -> None:
    with socket.create_connection(("127.0.0.1", web.port), 10) as connection:
        head = f"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {web.token}\r\n"
        connection.sendall(f"{head}Authorization: Bearer {web.token}\r\nConnection: close\r\n\r\n".encode())
        assert connection.makefile("rb").read().startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("sent", [b"", b"GET /v1/hea", b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_connection_that_does_not_ask_ends(web: Web, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr("web.port.REQUEST_SECONDS", 0.05)
    with socket.create_connection(("127.0.0.1", web.port), 10) as connection:
        connection.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""


def test_a_body_that_does_not_come_ends(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.bodies.JSON_SECONDS", 0.05)
    monkeypatch.setattr("web.bodies._DRAIN_SECONDS", 0.05)
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {web.token}\r\n"
    with socket.create_connection(("127.0.0.1", web.port), 10) as connection:
        connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{{".encode())
        assert connection.makefile("rb").read().startswith(b"HTTP/1.1 408")


LIMITS = dataclasses.replace(
    ConnectionLimits(), connections=MOST_CONNECTIONS, pending_by_address=PENDING_OF_ADDRESS
)
"""Limits of the daemon."""
IDLE = 10_000


@pytest.fixture
def many_files() -> Iterator[None]:
    """Allow this process to open as many files as the test needs; skip it where that is forbidden."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = IDLE + 2 * MOST_CONNECTIONS
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"{needed} open files are needed, and {hard} are allowed (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.long
@pytest.mark.parametrize("addresses", [1, 200])
@pytest.mark.usefixtures("many_files")
def test_ten_thousand_idle_connections_keep_no_caller_out(
    fake: FakeAggregator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, addresses: int
) -> None:
    """Open them from some addresses, between the requests of a caller that was there before and of new ones."""
    monkeypatch.setattr("web.port.REQUEST_SECONDS", 5.0)
    with ExitStack() as stack, serving_web(tmp_path, fake.address, LIMITS) as web:
        known = http.client.HTTPConnection("127.0.0.1", web.port, timeout=10)
        stack.callback(known.close)

        def ask() -> int:
            known.request("GET", "/v1/cluster", headers={"Authorization": f"Bearer {web.token}"})
            answer = known.getresponse()
            answer.read()
            return answer.status

        assert ask() == 200
        poll, seconds = select.poll(), []
        for number in range(IDLE):
            source = (f"127.0.1.{1 + number % addresses}", 0)
            idle = socket.create_connection(("127.0.0.1", web.port), 10, source_address=source)
            stack.callback(idle.close)
            poll.register(idle, select.POLLRDHUP)
            if number % 100 == 0:  # which also gives the server time to accept
                began = time.monotonic()
                assert ask() == 200
                seconds.append(time.monotonic() - began)
        most = LIMITS.pending_by_address if addresses == 1 else LIMITS.pending
        eventually(
            lambda: IDLE - len(poll.poll(0)) <= most, "the end of the last ones that are too many", 2.0
        )
        assert sorted(seconds)[len(seconds) // 2] < 1.0

        def new_caller() -> bool:
            with contextlib.suppress(ConnectionError, http.client.HTTPException):
                return web.get("/v1/cluster").status == 200
            return False

        if addresses == 1:
            assert new_caller(), "from another address, at once"
        eventually(new_caller, "a place, once idle connections have ended", 15.0)


def test_a_program_may_open_many_connections_at_once(fake: FakeAggregator, tmp_path: Path) -> None:
    with serving_web(tmp_path, fake.address, LIMITS) as web:

        async def ask_all() -> list[tiermesh.Cluster]:
            async with AsyncExitStack() as stack:
                url = f"http://127.0.0.1:{web.port}"
                clients = [
                    await stack.enter_async_context(tiermesh.AsyncClient(url, token=web.token))
                    for _ in range(100)
                ]
                return await asyncio.gather(*(client.status() for client in clients))

        assert len(asyncio.run(ask_all())) == 100


def test_a_stranger_is_asked_for_nothing_but_a_token(fake: FakeAggregator, tmp_path: Path) -> None:
    """Check that answers which the aggregator has no part in make no stranger a known caller."""
    with serving_web(tmp_path, fake.address) as web:
        for method, path in (("GET", "/v1/nothing"), ("GET", "/v1/jobs?limit=0"), ("POST", "/v1/jobs")):
            assert web.call(method, path, {} if method == "POST" else None, token=draw_token()).status == 401
        shown = draw_token()
        statuses = [web.call("GET", "/v1/nothing", token=shown).status for _ in range(35)]
        assert set(statuses) == {401, 429}
