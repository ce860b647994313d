"""A web daemon's port and service in a thread, before an aggregator, and a plain client of it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.jobs.target import AggregatorTarget
from services.transport.access.tokens import draw_token
from services.transport.ports.admission import ConnectionLimits
from services.transport.security import Security
from web.daemon import LOOPBACK_NAMES
from web.service import WebMetrics, WebService
from web.static import PAGE_FOLDER

LIMITS = ConnectionLimits()
PLAIN = Security()


@dataclass(frozen=True)
class Answer:
    """Answer of the API."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def kind(self) -> str:
        """Return the type of a problem, without its prefix."""
        assert self.headers["content-type"] == "application/problem+json", self
        assert self.json["status"] == self.status
        return str(self.json["type"]).removeprefix("/problems/")


@dataclass
class Web:
    """A web daemon that serves.

    Attributes:
        port: its port.
        token: its own token.
        stored: folder of the files that were sent.
    """

    stored: Path
    token: str = field(default_factory=draw_token)
    port: int = 0

    def call(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        headers: Mapping[str, str] = {},
        token: str | None = None,
    ) -> Answer:
        """Return the answer to a request."""
        sent = {"Authorization": f"Bearer {self.token if token is None else token}"}
        if isinstance(body, dict):
            body, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        elif method == "PUT":
            sent["Content-Type"] = "application/octet-stream"
        sent |= headers
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, {name: text for name, text in sent.items() if text})
            answer = connection.getresponse()
            found = {name.lower(): text for name, text in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        """Return the answer to a GET."""
        return self.call("GET", path, None, {name.replace("_", "-"): text for name, text in headers.items()})


@contextmanager
def serving_web(
    folder: Path,
    aggregator: str,
    limits: ConnectionLimits = LIMITS,
    security: Security = PLAIN,
    own: Security = PLAIN,
    page_folder: Path = PAGE_FOLDER,
) -> Iterator[Web]:
    """Serve the API before an aggregator, in a thread of its own.

    Args:
        folder: folder of its state.
        aggregator: addresses of the aggregator.
        limits: limits of its port.
        security: how it calls the aggregator.
        own: its certificate.
        page_folder: folder of the page.
    """
    web, started = Web(folder / "web/files"), threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        service = WebService(
            AggregatorTarget(aggregator, security, 5.0),
            state_dir=folder / "web",
            cache_bytes=1 << 30,
            hosts=LOOPBACK_NAMES,
            own_token=web.token,
            metrics=WebMetrics(),
            page_folder=page_folder,
        )
        port = service.open_port("127.0.0.1:0", own, limits, lambda refusal: None)
        web.port = port.port
        (folder / "web").mkdir(exist_ok=True)
        await service.start()
        watching = asyncio.ensure_future(service.run())
        started.set()
        await stop.wait()
        watching.cancel()
        await port.stop(0.1)
        await service.stop()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert started.wait(30)
        yield web
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
