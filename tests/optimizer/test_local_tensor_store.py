"""Tensors in the optimizer's own process: how many chunks of a sum may wait for the kernel thread."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np

from optimizer.core import events as ev
from optimizer.local_tensor_store import LocalTensorStore
from optimizer.tensor_store import TensorStoreEvents
from services.config.load import load_job
from services.runtime.backlog import MAX_WAITING_CHUNKS
from services.runtime.metrics import OptimizerMetrics
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.transport.newest_weights import NewestWeights
from tests.support.cluster.bits import regression_config, write_config

CHUNKS = 2 * MAX_WAITING_CHUNKS
LAYOUT = Layout.build([("w", (CHUNKS * CHUNK_ELEMENTS,), True, "w", False)])
LIMIT_SECONDS = 30


def test_no_more_chunks_wait_for_a_checkpoint_s_copy_than_may(tmp_path: Path) -> None:
    config = load_job(write_config(tmp_path, regression_config()), [])[0]

    async def scenario() -> None:
        told: asyncio.Queue[ev.Measured | ev.SaveFailed | ev.OperationFailed] = asyncio.Queue()
        events = TensorStoreEvents(told.put_nowait, lambda event: None)
        home = LocalTensorStore(events, NewestWeights(), incarnation="i", metrics=OptimizerMetrics())
        await home.open("j", config, LAYOUT, None)
        copied = threading.Event()
        home.snapshot(ev.Snapshot("j", 1, 1), lambda *copies: assert_soon(copied))
        waiting = 0

        async def bring() -> None:
            nonlocal waiting
            for chunk in range(CHUNKS):
                await home.room()
                home.stage(chunk, np.ones(CHUNK_ELEMENTS, np.float32))
                waiting = chunk + 1

        bringing = asyncio.ensure_future(bring())
        for _ in range(CHUNKS):
            await asyncio.sleep(0)
        assert waiting == MAX_WAITING_CHUNKS
        copied.set()
        await bringing
        home.measure(ev.Measure("j", 1))
        assert isinstance(await told.get(), ev.Measured), "none was lost"
        home.close()

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def assert_soon(event: threading.Event) -> None:
    assert event.wait(LIMIT_SECONDS)
