"""What a worker believes of an aggregator: of its Welcome, and of words that were damaged on their way."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from protos import cluster_pb2 as pb
from services.runtime.metrics import WorkerMetrics
from services.transport.links import LinkClosed
from services.transport.security import Security
from tests.support.damaging import DamagingPeer
from worker.service import WorkerService, timeouts_from

LIMIT_SECONDS = 30.0


def test_the_timeouts_follow_from_the_cluster_s_heartbeat() -> None:
    assert timeouts_from(pb.Welcome(heartbeat_seconds=2.0)).silent == 5.0


@pytest.mark.parametrize("heartbeat", [0.0, -5.0, float("nan")])
def test_a_heartbeat_that_would_have_it_spin_ends_the_link(heartbeat: float) -> None:
    with pytest.raises(LinkClosed, match=r"its Welcome names a heartbeat of .* expected more than 0"):
        timeouts_from(pb.Welcome(heartbeat_seconds=heartbeat))


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (
            pb.WorkerCommand(epoch=1, welcome=pb.Welcome(name="a", heartbeat_seconds=5.0)),
            "Attend: message 2,",
        ),
        (pb.WorkerCommand(epoch=1, heartbeat=pb.Heartbeat()), "its first message is no Welcome"),
    ],
    ids=["damaged", "no-welcome"],
)
def test_a_worker_that_hears_nonsense_connects_anew_before_a_beat(
    first: pb.WorkerCommand, told: str, caplog: pytest.LogCaptureFixture
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
            assert peer.heard[0] == 1, "Hello alone: no beat was waited for"
            assert f"aggregator {peer.address}: {told}" in caplog.text
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await worker.stop()

    caplog.set_level(logging.WARNING)
    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_a_worker_works_for_no_epoch_below_the_one_that_it_has_obeyed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The newer one damages its words, so that the other one of the list is tried."""

    def aggregator(name: str, epoch: int) -> DamagingPeer:
        welcome = pb.Welcome(name=name, heartbeat_seconds=5.0)
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
            told = f"aggregator {older.address}: a is of epoch 4, this worker has obeyed epoch 5"
            assert told in caplog.text
            assert older.heard == [1], "Hello alone"
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await worker.stop()

    caplog.set_level(logging.WARNING)
    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_a_peer_that_takes_connections_and_says_nothing_is_waited_for_no_longer_than_for_welcome() -> None:
    """As a frozen one does: its kernel answers. gRPC itself would wait 20 s for it."""

    async def scenario() -> None:
        welcome = pb.WorkerCommand(epoch=1, welcome=pb.Welcome(name="a", heartbeat_seconds=5.0))
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

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS / 2))
