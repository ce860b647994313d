"""The optimizer's door: what comes to it is taken when there is room."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from optimizer.service import OptimizerService
from services.runtime.metrics import OptimizerMetrics
from services.tensors.chunk_messages import Message

LIMIT_SECONDS = 30


def test_a_stream_is_not_read_while_there_is_no_room(tmp_path: Path) -> None:
    class Stub:
        """Context, link and engine: a message is always there, and room after a while."""

        def __init__(self) -> None:
            self.read_messages, self.taken = 0, 0
            self.roomy = asyncio.Event()

        async def room(self) -> None:
            await self.roomy.wait()

        async def read(self) -> Any:
            self.read_messages += 1
            return b"" if self.read_messages < 3 else None

        def deserialize(self, message: Message) -> list[Any]:
            self.taken += 1
            return [None]

    async def scenario() -> None:
        stub: Any = Stub()
        service: Any = OptimizerService(name="opt", state_dir=tmp_path, metrics=OptimizerMetrics())
        service.engine, service._chunk_arrived = stub, lambda chunk: ""
        receiving = asyncio.ensure_future(service._receive(stub, stub, stub))
        await asyncio.sleep(0)
        assert (stub.read_messages, stub.taken) == (1, 0)
        stub.roomy.set()
        await receiving
        assert (stub.read_messages, stub.taken) == (3, 2)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
