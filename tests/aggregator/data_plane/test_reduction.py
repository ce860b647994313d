"""The reduction has a thread of its own, on which no more payloads wait than may."""

from __future__ import annotations

import asyncio
import threading
import weakref

import numpy as np
from numpy.typing import NDArray

from aggregator.data_plane.reduction import Reduction
from plane.sums import NotStored
from protos.plane_pb2 import DropSum, FinishSum, KeepPiece, KeepSum, SumNode
from protos.tensors_pb2 import BFLOAT16, FLOAT32
from services.runtime.backlog import MAX_WAITING_CHUNKS
from services.tensors.chunk_messages import TensorChunk
from tests.plane.test_sums import in_place, received

LIMIT_SECONDS = 30
ROOT = SumNode(first=0, count=4)
FINISH = FinishSum(node=ROOT)


def test_orders_are_carried_out_in_order_on_a_thread_of_their_own() -> None:
    async def run() -> None:
        passed: list[tuple[float, int]] = []
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def forward(order: FinishSum, values: NDArray[np.float32]) -> None:
            passed.append((float(values[0]), threading.get_ident()))
            if len(passed) == 3:
                loop.call_soon_threadsafe(done.set)

        failures: list[Exception] = []
        reduction = Reduction(forward, failures.append)
        chunks = [received(FLOAT32, seed) for seed in range(3)]
        for chunk in chunks:
            reduction.submit([KeepPiece(), KeepSum(node=ROOT), FINISH], chunk)
        await asyncio.wait_for(done.wait(), LIMIT_SECONDS)
        reduction.close()
        assert [value for value, _ in passed] == [float(chunk.values()[0]) for chunk in chunks]
        assert threading.get_ident() not in {thread for _, thread in passed}
        assert not failures

    asyncio.run(run())


def test_an_error_on_the_kernel_thread_is_reported() -> None:
    async def run() -> None:
        failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        reduction = Reduction(
            lambda order, values: None, lambda error: loop.call_soon_threadsafe(failed.set_result, error)
        )
        reduction.submit([FINISH], None)
        assert isinstance(await asyncio.wait_for(failed, LIMIT_SECONDS), NotStored)
        reduction.close()

    asyncio.run(run())


def test_no_more_payloads_wait_for_the_thread_than_may() -> None:
    async def run() -> None:
        go = threading.Event()
        reduction = Reduction(lambda order, values: assert_soon(go), lambda error: None)
        for seed in range(MAX_WAITING_CHUNKS):
            await asyncio.wait_for(reduction.wait_for_room(), LIMIT_SECONDS)
            reduction.submit([KeepPiece(), KeepSum(node=ROOT), FINISH], received(FLOAT32, seed))
        reduction.submit([KeepPiece(), KeepSum(node=ROOT), DropSum(node=ROOT)], in_place(FLOAT32, 0))
        rooms = [asyncio.ensure_future(reduction.wait_for_room()) for _ in range(3)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(room.done() for room in rooms), "the thread has come to none of them"
        go.set()
        await asyncio.wait_for(asyncio.gather(*rooms), LIMIT_SECONDS)
        reduction.close()

    asyncio.run(run())


def test_a_payload_goes_with_its_sum_though_others_came_in_the_same_turn() -> None:
    async def run() -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        chunks: list[weakref.ref[TensorChunk]] = []
        alive: list[list[bool]] = []

        def forward(order: FinishSum, values: NDArray[np.float32]) -> None:
            alive.append([chunk() is not None for chunk in chunks])
            if len(alive) == 2:
                loop.call_soon_threadsafe(done.set)

        reduction = Reduction(forward, lambda error: None)
        for seed in range(2):
            chunk = received(BFLOAT16, seed)  # its values are not a view of its payload
            chunks.append(weakref.ref(chunk))
            reduction.submit([KeepPiece(), KeepSum(node=ROOT), FINISH], chunk)
        del chunk
        await asyncio.wait_for(done.wait(), LIMIT_SECONDS)
        reduction.close()
        assert alive[1][0] is False

    asyncio.run(run())


def assert_soon(event: threading.Event) -> None:
    assert event.wait(LIMIT_SECONDS)
