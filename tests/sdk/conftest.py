"""Clients of a small server that answers as the HTTP API does."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import tiermesh
from tests.support.web_api import TOKEN, WebApi, serve_api


class Blocking:
    """Runs the calls of an `AsyncClient` one by one, and lists what its iterators yield: it looks like a `Client`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: tiermesh.AsyncClient) -> None:
        self._loop = loop
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*arguments: Any, **named: Any) -> Any:
            result = method(*arguments, **named)
            if inspect.isasyncgen(result):
                return iter(self._loop.run_until_complete(as_list(result)))
            return self._loop.run_until_complete(result)

        return call


async def as_list(items: Any) -> list[Any]:
    return [item async for item in items]


@pytest.fixture
def api() -> Iterator[WebApi]:
    with serve_api() as api:
        yield api


@pytest.fixture(params=["Client", "AsyncClient"])
def client(request: pytest.FixtureRequest, api: WebApi) -> Iterator[Any]:
    options: dict[str, Any] = {"token": TOKEN, "timeout_seconds": 20.0, "outage_seconds": 20.0}
    if request.param == "Client":
        with tiermesh.Client(api.url, **options) as client:
            yield client
        return
    loop = asyncio.new_event_loop()
    client = tiermesh.AsyncClient(api.url, **options)
    yield Blocking(loop, client)
    loop.run_until_complete(client.close())
    loop.close()


@pytest.fixture
def fast_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 10 seconds pass between two looks at the clock of an outage."""
    clock = itertools.count(0, 10)
    monkeypatch.setattr("tiermesh.outage.time", SimpleNamespace(monotonic=lambda: next(clock)))


@pytest.fixture(autouse=True)
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiermesh.outage._FIRST_SECONDS", 0.001)
    monkeypatch.setattr("tiermesh.outage._MOST_SECONDS", 0.01)
    monkeypatch.setattr("tiermesh.calls._POLL_SECONDS", (0.001, 0.01))
