"""A worker checks an aggregator's Welcome and leaves one whose messages are damaged or of an old epoch."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from protos import cluster_pb2 as pb
from services.protocol.versions import PROTOCOL_VERSION
from services.runtime.host_memory import read_host_memory
from services.runtime.metrics import WorkerMetrics
from services.transport.links import LinkClosed
from services.transport.security import Security
from tests.support.damaging import DamagingPeer
from worker.service import WorkerService, read_timeouts

LIMIT_SECONDS = 30.0
HEARTBEAT_SECONDS = 100 * LIMIT_SECONDS  # no test waits for one
WELCOME = pb.Welcome(name="a", heartbeat_seconds=HEARTBEAT_SECONDS, protocol=PROTOCOL_VERSION)


def test_the_timeouts_follow_from_the_cluster_s_heartbeat() -> None:
    assert read_timeouts(pb.Welcome(heartbeat_seconds=2.0)).silent == 5.0


@pytest.mark.parametrize("heartbeat", [0.0, -5.0, float("nan")])
def test_a_heartbeat_that_is_not_positive_ends_the_link(heartbeat: float) -> None:
    with pytest.raises(LinkClosed, match=r"Welcome.*heartbeat.*more than 0"):
        read_timeouts(pb.Welcome(heartbeat_seconds=heartbeat))


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (
            pb.WorkerCommand(epoch=1, welcome=WELCOME),
            "Attend: message 2,",
        ),
        (pb.WorkerCommand(epoch=1, heartbeat=pb.Heartbeat()), "the first message is Heartbeat"),
    ],
    ids=["damaged", "no-welcome"],
)
def test_a_worker_reconnects_after_a_wrong_message_without_waiting_for_a_heartbeat(
    first: pb.WorkerCommand, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        peer = DamagingPeer("tiermesh.Cluster", first, pb.WorkerCommand(epoch=1, heartbeat=pb.Heartbeat()))
        async with peer.serving():
            worker = WorkerService(
                name="w",
                aggregators=[peer.address],
                security=Security(),
                data_dir=None,
                metrics=WorkerMetrics(),
            )
            await worker.start()
            working = asyncio.ensure_future(worker.run())
            await peer.again.wait()
            assert peer.heard[0] == 1, "only Hello was sent"
            assert f"aggregator {peer.address}: {reason}" in caplog.text
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await worker.stop()

    caplog.set_level(logging.WARNING)
    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_a_worker_refuses_an_aggregator_of_an_older_epoch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The newer aggregator sends a damaged message, so that the worker tries the older one too.

    def aggregator(name: str, epoch: int) -> DamagingPeer:
        welcome = pb.Welcome(name=name, heartbeat_seconds=HEARTBEAT_SECONDS, protocol=PROTOCOL_VERSION)
        first, then = (
            pb.WorkerCommand(epoch=epoch, welcome=welcome),
            pb.WorkerCommand(heartbeat=pb.Heartbeat()),
        )
        return DamagingPeer("tiermesh.Cluster", first, then)

    async def scenario() -> None:
        newer, older = aggregator("b", 5), aggregator("a", 4)
        async with newer.serving(), older.serving():
            worker = WorkerService(
                name="w",
                aggregators=[newer.address, older.address],
                security=Security(),
                data_dir=None,
                metrics=WorkerMetrics(),
            )
            await worker.start()
            working = asyncio.ensure_future(worker.run())
            await newer.again.wait()
            (reason,) = [line for line in caplog.messages if f"aggregator {older.address}: " in line]
            assert "epoch 4, expected at least 5" in reason
            assert older.heard == [1], "only Hello was sent"
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await worker.stop()

    caplog.set_level(logging.WARNING)
    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_a_worker_says_what_memory_its_host_has() -> None:
    async def scenario() -> pb.Hello:
        worker = WorkerService(
            name="w", aggregators=["a:1"], security=Security(), data_dir=None, metrics=WorkerMetrics()
        )
        return worker.begin().hello

    hello, expected = asyncio.run(scenario()), read_host_memory()
    assert (hello.host, hello.memory_bytes) == (expected.host, expected.total_bytes)
    assert 0 < hello.memory_free_bytes <= hello.memory_bytes


def test_the_wait_for_a_silent_peer_s_welcome_is_bounded() -> None:
    # A frozen peer's kernel still accepts connections. gRPC itself would wait 20 s for an answer, twice.

    async def scenario() -> None:
        welcome = pb.WorkerCommand(epoch=1, welcome=WELCOME)
        peer = DamagingPeer("tiermesh.Cluster", welcome, pb.WorkerCommand(heartbeat=pb.Heartbeat()))
        with socket.create_server(("127.0.0.1", 0)) as frozen:
            async with peer.serving():
                worker = WorkerService(
                    name="w",
                    aggregators=[f"127.0.0.1:{frozen.getsockname()[1]}", peer.address],
                    security=Security(),
                    data_dir=None,
                    metrics=WorkerMetrics(),
                    hello_seconds=0.5,
                )
                await worker.start()
                working = asyncio.ensure_future(worker.run())
                await peer.again.wait()
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
                await worker.stop()

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
