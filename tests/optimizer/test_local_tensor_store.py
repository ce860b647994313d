"""The tensor store in the optimizer's process: bound on the chunks that wait for its kernel thread."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np

from optimizer.core import events as ev
from optimizer.local_tensor_store import LocalTensorStore
from optimizer.tensor_store import TensorStoreCallbacks
from services.config.load import load_job
from services.runtime.backlog import MAX_WAITING_CHUNKS
from services.runtime.metrics import OptimizerMetrics
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.transport.data.newest_weights import NewestWeights
from tests.support.cluster.bits import regression_config, write_config

CHUNKS = 2 * MAX_WAITING_CHUNKS
LAYOUT = Layout.build([("w", (CHUNKS * CHUNK_ELEMENTS,), True, "w", False)])
LIMIT_SECONDS = 30


def test_the_number_of_chunks_that_wait_for_a_checkpoint_copy_is_bounded(tmp_path: Path) -> None:
    config = load_job(write_config(tmp_path, regression_config()), [])[0]

    async def scenario() -> None:
        reports: asyncio.Queue[ev.Measured | ev.SaveFailed | ev.OperationFailed] = asyncio.Queue()
        callbacks = TensorStoreCallbacks(reports.put_nowait, lambda event: None)
        store = LocalTensorStore(callbacks, NewestWeights(), incarnation="i", metrics=OptimizerMetrics())
        await store.open("j", config, LAYOUT, None)
        copy_may_end = threading.Event()
        store.snapshot(ev.Snapshot("j", 1, 1), lambda *copies: wait_for(copy_may_end))
        staged = 0

        async def stage_all() -> None:
            nonlocal staged
            for chunk in range(CHUNKS):
                await store.wait_for_room()
                store.stage(chunk, np.ones(CHUNK_ELEMENTS, np.float32))
                staged = chunk + 1

        staging = asyncio.ensure_future(stage_all())
        for _ in range(CHUNKS):
            await asyncio.sleep(0)
        assert staged == MAX_WAITING_CHUNKS
        copy_may_end.set()
        await staging
        store.measure(ev.Measure("j", 1))
        assert isinstance(await reports.get(), ev.Measured), "no chunk was lost"
        store.close()

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def wait_for(event: threading.Event) -> None:
    assert event.wait(LIMIT_SECONDS)
