"""Tests of the job service without a server: a download whose reader takes nothing ends, and frees its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc.aio import Metadata

from aggregator import jobs_service
from aggregator.downloads import MOST_DOWNLOADS, Downloads
from aggregator.jobs_service import JobsServicer
from protos.cluster_pb2 import FilePart
from protos.jobs_pb2 import DownloadRequest, Job
from services.caps import Cap


class Aborted(Exception):
    """The end of a call, as gRPC raises it."""


class Reader:
    """The context of a call whose reader takes some messages and no more.

    Args:
        takes: how many it takes.
    """

    def __init__(self, takes: int) -> None:
        self._takes = takes
        self.status: tuple[grpc.StatusCode, str] | None = None

    async def write(self, _: FilePart) -> None:
        """Return once the reader takes a message."""
        self._takes -= 1
        if self._takes < 0:
            await asyncio.Event().wait()

    def cancelled(self) -> bool:
        """Return whether the caller has left."""
        return False

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        """End the call."""
        self.status = code, text
        raise Aborted


class Backend:
    """An aggregator with one job and its checkpoint of three parts."""

    def __init__(self) -> None:
        self.register = self

    def find(self, job: str) -> Job:
        """Return the job."""
        return Job(id=job)

    async def read_checkpoint(self, _: object) -> AsyncIterator[FilePart]:
        """Yield the parts."""
        for _number in range(3):
            yield FilePart(path="a", data=b"x", size=3)


async def download(servicer: JobsServicer, reader: Any) -> None:
    async for _ in servicer.Download(DownloadRequest(job="a", newest=True), reader):
        raise AssertionError("parts are written")


def test_a_reader_that_takes_nothing_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_service, "IDLE_SECONDS", 0.05)
    reached: list[Cap] = []

    async def scenario() -> None:
        backend: Any = Backend()
        servicer = JobsServicer(backend, Downloads(None, reached.append), reached.append)
        stuck = [Reader(takes=number % 3) for number in range(MOST_DOWNLOADS)]
        tasks = [asyncio.ensure_future(download(servicer, reader)) for reader in stuck]
        await asyncio.sleep(0)
        late = Reader(takes=3)
        with pytest.raises(Aborted):
            await download(servicer, late)
        assert late.status is not None and late.status[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (
            late.status[1] == "downloads: 32 are under way, expected at most 32; try again when one has ended"
        )
        assert all(isinstance(each, Aborted) for each in await asyncio.gather(*tasks, return_exceptions=True))
        assert {each.status for each in stuck} == {
            (
                grpc.StatusCode.UNAVAILABLE,
                "download of job a: no part was taken for 0.05 s; download it again",
            )
        }
        monkeypatch.undo()
        await download(servicer, Reader(takes=3))

    asyncio.run(scenario())
    assert reached == [Cap.DOWNLOADS]


def test_a_download_counts_for_its_person(monkeypatch: pytest.MonkeyPatch) -> None:
    callers = iter([*["ann"] * (MOST_DOWNLOADS // 2 + 1), "bob"])
    monkeypatch.setattr(jobs_service, "current_caller", lambda: SimpleNamespace(person=next(callers)))
    reached: list[Cap] = []

    async def scenario() -> None:
        backend: Any = Backend()
        servicer = JobsServicer(backend, Downloads(None, reached.append), reached.append)
        tasks = [asyncio.ensure_future(download(servicer, Reader(0))) for _ in range(MOST_DOWNLOADS // 2)]
        await asyncio.sleep(0)
        late = Reader(takes=3)
        with pytest.raises(Aborted):
            await download(servicer, late)
        assert late.status is not None and late.status[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        await download(servicer, Reader(takes=3))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())
    assert reached == [Cap.DOWNLOADS_PER_PERSON]


@pytest.mark.parametrize(
    "end",
    [
        asyncio.CancelledError(),
        grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), "Socket closed"),
    ],
    ids=type,
)
def test_a_download_says_that_the_optimizer_was_lost(end: BaseException) -> None:
    class LosingBackend(Backend):
        async def read_checkpoint(self, _: object) -> AsyncIterator[FilePart]:
            yield FilePart(path="a", data=b"x", size=3)
            raise end

    async def scenario() -> None:
        backend: Any = LosingBackend()
        reader = Reader(takes=3)
        with pytest.raises(Aborted):
            await download(JobsServicer(backend, Downloads(None, print), print), reader)
        assert reader.status is not None and reader.status[0] is grpc.StatusCode.UNAVAILABLE
        assert reader.status[1].startswith("the optimizer was lost amid the download")

    asyncio.run(scenario())
