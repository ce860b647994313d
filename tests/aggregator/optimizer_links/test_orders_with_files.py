"""Orders to an optimizer on another host wait for their files and for the earlier orders of their job alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from aggregator.optimizer_links.orders_with_files import OrdersWithFiles
from protos import cluster_pb2 as pb
from protos.files_pb2 import FileRef
from services.errors import Refused
from services.files.store import FileStore
from services.protocol.envelope import OptimizerBody, OptimizerOrder
from services.transport.links import LinkClosed

LIMIT_SECONDS = 30


class Uploads:
    """Stand-in for uploads, which end when their job's event is set.

    Attributes:
        begun: jobs whose uploads have begun.
        may_end: events by job.
        sent: orders that were sent, as job and type.
        reports: what the aggregator is told.
    """

    def __init__(self, folder: Path) -> None:
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.may_end = {job: asyncio.Event() for job in "abc"}
        self.sent: asyncio.Queue[str] = asyncio.Queue()
        self.reports: list[OptimizerBody] = []
        self.error: Exception | None = None
        self.orders = OrdersWithFiles(FileStore(folder))

    async def upload(self, channel: Any, store: Any, refs: list[FileRef], *_: Any, **__: Any) -> None:
        job = refs[0].sha256
        self.begun.put_nowait(job)
        await self.may_end[job].wait()
        if self.error is not None:
            raise self.error

    def send(self, body: OptimizerOrder) -> None:
        assert not isinstance(body, pb.Hello | pb.Heartbeat)
        self.sent.put_nowait(f"{body.job} {type(body).__name__}")


def initialise(job: str) -> pb.Initialise:
    return pb.Initialise(job=job, layout=FileRef(sha256=job))


def with_uploads(
    folder: Path, monkeypatch: pytest.MonkeyPatch, scenario: Callable[[Uploads], Awaitable[None]]
) -> None:
    async def run() -> None:
        uploads = Uploads(folder)
        monkeypatch.setattr("aggregator.optimizer_links.orders_with_files.upload", uploads.upload)
        channel: Any = None
        running = asyncio.ensure_future(
            uploads.orders.run(channel, "optimizer o", uploads.send, uploads.reports.append)
        )
        try:
            await scenario(uploads)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


def test_an_upload_delays_the_orders_of_its_job_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(uploads: Uploads) -> None:
        for order in (initialise("a"), pb.StartOver(job="a"), initialise("b"), pb.Open(job="c")):
            uploads.orders.put(order)
        assert [await uploads.begun.get() for _ in "ab"] == ["a", "b"]
        assert await uploads.sent.get() == "c Open"
        uploads.may_end["b"].set()
        assert await uploads.sent.get() == "b Initialise"
        assert uploads.sent.empty()
        uploads.may_end["a"].set()
        assert [await uploads.sent.get() for _ in range(2)] == ["a Initialise", "a StartOver"]

    with_uploads(tmp_path, monkeypatch, scenario)


def test_a_closed_job_gives_up_its_upload_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(uploads: Uploads) -> None:
        uploads.orders.put(initialise("a"))
        uploads.orders.put(initialise("b"))
        assert [await uploads.begun.get() for _ in "ab"] == ["a", "b"]
        uploads.orders.put(pb.Close(job="a"))
        assert await uploads.sent.get() == "a Close"
        uploads.may_end["b"].set()
        assert await uploads.sent.get() == "b Initialise"
        assert uploads.reports == []

    with_uploads(tmp_path, monkeypatch, scenario)


def test_files_that_are_refused_fail_their_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(uploads: Uploads) -> None:
        uploads.error = Refused("too large")
        uploads.may_end["a"].set()
        uploads.orders.put(initialise("a"))
        uploads.orders.put(pb.Close(job="a"))
        assert await uploads.sent.get() == "a Close"
        assert uploads.reports == [pb.Failure(job="a", reason="Initialise was not sent: too large")]

    with_uploads(tmp_path, monkeypatch, scenario)


def test_an_unexpected_error_of_an_upload_ends_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        uploads = Uploads(tmp_path)
        uploads.error = KeyError("x")
        uploads.may_end["a"].set()
        monkeypatch.setattr("aggregator.optimizer_links.orders_with_files.upload", uploads.upload)
        uploads.orders.put(initialise("a"))
        channel: Any = None
        with pytest.raises(LinkClosed, match="x"):
            await uploads.orders.run(channel, "optimizer o", uploads.send, uploads.reports.append)

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))
