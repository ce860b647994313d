"""Tests of a standby: which calls it answers before, while and after it leads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from aggregator.core.succession import Deposed
from aggregator.standby import StandbyService
from aggregator.storage.job_queue import JobQueue, open_queue
from protos import jobs_pb2 as jobs
from protos.jobs_pb2_grpc import JobsStub
from services.timeouts import Timeouts
from services.transport.request_handlers import service_handler
from services.transport.security import Security
from services.transport.server import open_channel, start_server
from tests.support.fake_aggregator import FakeAggregator

TIMEOUTS = Timeouts.from_heartbeat(20.0, {"tick": 0.1})
"""A short tick, since tests wait for it, and a long wait for another process that writes to the queue."""
LIMIT_SECONDS = 30.0
TENSOR_PORT = 4711


class Leader:
    """A fake of an aggregator that leads."""

    def __init__(self, queue: JobQueue, tensor_port: int) -> None:
        self.tensor_port = tensor_port
        self.deposed = asyncio.Event()
        self.exchanged: list[Any] = []
        self._queue = queue

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        return [service_handler(jobs.DESCRIPTOR.services_by_name["Jobs"], FakeAggregator())]

    def tensor_methods(self) -> dict[str, Callable[[Any], Awaitable[None]]]:
        return {"/tiermesh.Cluster/Exchange": self._exchange}

    async def _exchange(self, stream: Any) -> None:
        self.exchanged.append(stream)

    async def run(self) -> None:
        await self.deposed.wait()
        raise Deposed("another one leads")

    async def stop(self) -> None:
        self._queue.close()


class TensorStream:
    """A fake call of Exchange that records its status."""

    def __init__(self) -> None:
        self.status: tuple[grpc.StatusCode, str] | None = None

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.status = code, details


class Standby:
    """A standby named b, and a server for it."""

    def __init__(self, state_dir: Path) -> None:
        self.leaders: list[Leader] = []
        self.service = StandbyService(name="b", state_dir=state_dir, timeouts=TIMEOUTS, make=self._make)

    def _make(self, queue: JobQueue, tensor_port: int) -> Any:
        self.leaders.append(Leader(queue, tensor_port))
        return self.leaders[-1]

    @asynccontextmanager
    async def served(self) -> AsyncIterator[grpc.aio.Channel]:
        server = await start_server(
            "127.0.0.1:0", Security(), self.service.handlers(), self.service.service_names
        )
        async with open_channel(f"127.0.0.1:{server.port}", Security()) as channel:
            try:
                yield channel
            finally:
                await server.stop(0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.service.start(TENSOR_PORT)
        running = asyncio.ensure_future(self.service.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def why_not(call: Any) -> str:
    """Return the text that a call is refused with; empty if it is answered."""
    try:
        await (call if isinstance(call, grpc.aio.UnaryUnaryCall) else call.read())
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        return str(error.details())
    return ""


async def until(channel: grpc.aio.Channel, expected: str) -> None:
    """Call until the answer is as expected."""
    while await why_not(JobsStub(channel).Status(jobs.StatusRequest())) != expected:
        pass


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[JobQueue]:
    """Open the queue of the leader a, from which no standby takes over within a test."""
    with open_queue(tmp_path, TIMEOUTS) as queue:
        queue.raise_epoch("a", takeover_seconds=2 * LIMIT_SECONDS)
        yield queue


def test_a_standby_refuses_calls_of_every_kind_and_names_the_leader(tmp_path: Path, leader: JobQueue) -> None:
    async def scenario() -> None:
        standby = Standby(tmp_path)
        async with standby.served() as channel:
            await until(channel, "this aggregator is a standby; the leader is not known yet")
            async with standby.running():
                await until(channel, "this aggregator is a standby; the leader is a (epoch 1)")
                assert (
                    await why_not(JobsStub(channel).Watch(jobs.JobRequest(job="j")))
                    == "this aggregator is a standby; the leader is a (epoch 1)"
                )
                attend = channel.stream_stream("/tiermesh.Cluster/Attend")()
                assert await why_not(attend) == "this aggregator is a standby; the leader is a (epoch 1)"
                with pytest.raises(grpc.aio.AioRpcError) as unknown:
                    await channel.unary_unary("/tiermesh.Optimizer/Attend")(b"")
                assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
                stream: Any = TensorStream()
                await standby.service.tensor_methods()["/tiermesh.Cluster/Exchange"](stream)
                assert stream.status == (
                    grpc.StatusCode.UNAVAILABLE,
                    "this aggregator is a standby; the leader is a (epoch 1)",
                )
        assert not standby.leaders

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_a_leader_answers_until_it_is_deposed(tmp_path: Path, leader: JobQueue) -> None:
    async def scenario() -> None:
        standby = Standby(tmp_path)
        async with standby.served() as channel, standby.running():
            await until(channel, "this aggregator is a standby; the leader is a (epoch 1)")
            leader.resign()
            await until(channel, "")
            (led,) = standby.leaders
            stream: Any = TensorStream()
            await standby.service.tensor_methods()["/tiermesh.Cluster/Exchange"](stream)
            assert led.exchanged == [stream]
            assert led.tensor_port == TENSOR_PORT
            assert leader.raise_epoch("a", takeover_seconds=2 * LIMIT_SECONDS) == 3
            led.deposed.set()
            await until(channel, "this aggregator is a standby; the leader is a (epoch 3)")
            assert standby.leaders == [led]

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_a_standby_that_is_stopped_as_it_takes_over_resigns(
    tmp_path: Path, leader: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, may_end = threading.Event(), threading.Event()
    take_over = JobQueue.take_over

    def take_over_slowly(*arguments: Any) -> int | None:
        epoch = take_over(*arguments)
        taken.set()
        assert may_end.wait(LIMIT_SECONDS)
        return epoch

    monkeypatch.setattr(JobQueue, "take_over", take_over_slowly)

    async def scenario() -> None:
        standby = Standby(tmp_path)
        await standby.service.start()
        running = asyncio.ensure_future(standby.service.run())
        assert await asyncio.to_thread(taken.wait, LIMIT_SECONDS)
        running.cancel()
        asyncio.get_running_loop().call_soon(may_end.set)
        await asyncio.gather(running, return_exceptions=True)
        assert not standby.leaders

    leader.resign()
    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
    sighting = leader.look("c")
    assert (sighting.epoch, sighting.leader) == (2, "b")
    assert sighting.takeover_seconds == 0.0, "another one may lead at once"
