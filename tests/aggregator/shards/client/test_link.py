"""A link to a shard: what is asked of the shard's tensors has an end, whatever becomes of it there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from aggregator.shards.array_pieces import piece_of
from aggregator.shards.client.link import ShardLink
from aggregator.shards.server.kernel_state import ShardTensors
from aggregator.shards.server.service import ShardService
from aggregator.shards.server.session import ShardSession
from optimizer.tensor_store import TensorStoreLost
from protos import shards_pb2 as pb
from services.config.load import load_job
from services.errors import Failed
from services.runtime.metrics import AggregatorMetrics
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.tensors.stripes import Stripe
from services.timeouts import Timeouts
from services.transport.security import Security
from services.transport.server import start_server
from tests.support.cluster.bits import regression_config, write_config

LIMIT_SECONDS = 60
LAYOUT = Layout.build([("w", (CHUNK_ELEMENTS + 5,), True, "w", False)])
PATIENT, HASTY = Timeouts.from_heartbeat(5.0), Timeouts.from_heartbeat(0.005)


class Linked:
    """A link to a real shard, and what it tells, awaited."""

    def __init__(self, address: str, timeouts: Timeouts) -> None:
        self.told: asyncio.Queue[str] = asyncio.Queue()
        self.reports: asyncio.Queue[Message] = asyncio.Queue()
        self.link = ShardLink(
            address,
            Stripe(),
            security=Security(),
            name="agg",
            incarnation="i",
            epoch=1,
            timeouts=timeouts,
            came=lambda _: self.told.put_nowait("came"),
            went=lambda _, reason: self.told.put_nowait(reason),
            failed=lambda: None,
            reported=lambda _, body: self.reports.put_nowait(body),
        )

    async def open(self, tmp_path: Path) -> None:
        """Have the shard hold a part."""
        spec = load_job(write_config(tmp_path, regression_config()), [])[0].to_json()
        self.link.order(pb.OpenPart(opening=1, job="j", spec_json=spec, layout_json=LAYOUT.dumps()))
        assert await self.reports.get() == pb.PartOpened(opening=1)

    async def pieces(self, copy: int) -> int:
        """Have a copy made and read it; the number of its pieces."""
        self.link.order(pb.CopyPart(copy=copy))
        return len([piece async for piece in self.link.read_part(copy)])


def with_link(timeouts: Timeouts, scenario: Callable[[Linked], Awaitable[None]]) -> None:
    async def run() -> None:
        service = ShardService(name="s", metrics=AggregatorMetrics())
        await service.start()
        server = await start_server("127.0.0.1:0", Security(), service.handlers(), service.service_names)
        linked = Linked(f"127.0.0.1:{server.port}", timeouts)
        running = asyncio.ensure_future(linked.link.keep_up())
        try:
            assert await linked.told.get() == "came"
            await scenario(linked)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await service.stop()
            await server.stop(0)

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


def test_a_copy_that_is_never_made_ends_the_link() -> None:
    async def scenario(linked: Linked) -> None:
        late = f"the next piece of copy 3 of its tensors did not come within {HASTY.stall:g} s"
        with pytest.raises(TensorStoreLost) as gone:
            [piece async for piece in linked.link.read_part(3)]
        assert str(gone.value) == f"shard 0 of 1 ({linked.link.address}): {late}"
        assert await linked.told.get() == late
        assert await linked.told.get() == "came", "it is made anew"

    with_link(HASTY, scenario)


def test_a_piece_that_is_never_taken_ends_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(linked: Linked) -> None:
        piece = piece_of("weights", np.zeros(3, np.float32), 0, offset=0, elements=3)
        with pytest.raises(
            TensorStoreLost, match="a piece of a checkpoint has been taken did not come within"
        ):
            await linked.link.write_part([piece])
        assert "did not come within" in await linked.told.get()

    async def write(_: ShardSession, __: pb.ArrayPiece) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(ShardSession, "write", write)
    with_link(HASTY, scenario)


def test_a_copy_that_there_is_no_memory_for_is_none_and_nothing_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Large:
        def copy(self) -> Any:
            raise MemoryError("Unable to allocate 9 GiB")

    async def scenario(linked: Linked) -> None:
        await linked.open(tmp_path)
        assert await linked.pieces(1) > 1
        with monkeypatch.context() as short:
            short.setattr(ShardTensors, "arrays", lambda _: {"weights": Large()})
            with pytest.raises(Failed) as failed:
                await linked.pieces(2)
        line = "no memory for a copy of its tensors (Unable to allocate 9 GiB); give its host more"
        assert str(failed.value) == f"shard 0 of 1 ({linked.link.address}): {line}"
        assert await linked.pieces(3) > 1, "its tensors are as they were"
        assert linked.told.empty()

    with_link(PATIENT, scenario)
