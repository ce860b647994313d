"""The optimizer's gRPC service reads its data stream only while the engine takes chunks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from optimizer.service import OptimizerService
from services.runtime.metrics import OptimizerMetrics
from services.tensors.chunk_messages import Message

LIMIT_SECONDS = 30


def test_a_chunk_is_not_taken_while_the_engine_has_no_room(tmp_path: Path) -> None:
    class Stub:
        """Stand-in for context, session, link and engine; two messages, and room once `has_room` is set."""

        def __init__(self) -> None:
            self.read_messages, self.taken = 0, 0
            self.has_room = asyncio.Event()

        async def wait_for_room(self) -> None:
            await self.has_room.wait()

        async def read(self) -> Any:
            self.read_messages += 1
            return b"" if self.read_messages < 3 else None

        def deserialize(self, message: Message) -> list[Any]:
            self.taken += 1
            return [None]

    async def scenario() -> None:
        stub: Any = Stub()
        service: Any = OptimizerService(name="opt", state_dir=tmp_path, metrics=OptimizerMetrics())
        service.engine, service._take_chunk = stub, lambda chunk: None
        receiving = asyncio.ensure_future(service._receive(stub, stub, stub))
        await asyncio.sleep(0)
        assert (stub.read_messages, stub.taken) == (1, 0)
        stub.has_room.set()
        await receiving
        assert (stub.read_messages, stub.taken) == (3, 2)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
