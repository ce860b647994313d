"""A data stream is read only while there is room, and ends with the control stream of its session."""

from __future__ import annotations

import asyncio
from typing import Any

from plane.streams.exchange_server import ExchangeServer
from plane.streams.newest_weights import NewestWeights
from plane.streams.shared_memory_link import ServerTensorLink
from protos.tensors_pb2 import ChunkHeader
from services.tensors.chunk_messages import Message, TensorChunk
from services.transport.mailbox import Mailbox

LIMIT_SECONDS = 30
CHUNK = TensorChunk(ChunkHeader(job="j"), memoryview(b""))


class Aborted(Exception):
    """End of a call, as grpc.aio raises it."""


class Context:
    """Stand-in for a call with any number of messages; there is room for them once `has_room` is set."""

    def __init__(self) -> None:
        self.read_messages, self.taken = 0, 0
        self.has_room = asyncio.Event()
        self.opened = asyncio.Event()
        self.reason = ""

    def peer(self) -> str:
        return "test"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    async def send_initial_metadata(self, metadata: Any) -> None:
        self.opened.set()

    async def wait_for_room(self, job: str) -> None:
        assert job == "j"
        await self.has_room.wait()

    async def read(self) -> Message | None:
        self.read_messages += 1
        if self.read_messages > 2:
            await asyncio.Event().wait()
        return b""

    async def abort(self, code: Any, details: str) -> None:
        self.reason = details
        raise Aborted(details)

    def take(self, chunks: list[TensorChunk]) -> None:
        self.taken += 1


async def _send_nothing(link: ServerTensorLink) -> None:
    await asyncio.Event().wait()


def test_a_chunk_is_not_taken_while_there_is_no_room(monkeypatch: Any) -> None:
    monkeypatch.setattr(ServerTensorLink, "deserialize", lambda _, message: [CHUNK])

    async def scenario() -> None:
        context: Any = Context()
        mailbox: Mailbox[bytes] = Mailbox()
        newest = NewestWeights()
        server = ExchangeServer(newest, shared_memory=False)
        serving = asyncio.ensure_future(
            server.serve(
                context,
                "worker w",
                mailbox,
                wait_for_room=context.wait_for_room,
                take=context.take,
                send=_send_nothing,
            )
        )
        await context.opened.wait()
        await asyncio.sleep(0)
        assert (context.read_messages, context.taken, len(newest.links)) == (1, 0, 1)
        context.has_room.set()
        while context.read_messages < 3:
            await asyncio.sleep(0)
        assert context.taken == 2
        mailbox.close("its control stream ended")
        await asyncio.gather(serving, return_exceptions=True)
        assert context.reason == "its control stream ended"
        assert newest.links == []

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
