"""The worker's daemon as an insider: its messages are changed where they leave the process.

It has many lives. In each it is honest until it lies, as `lies.py` says; soon after that its next life begins, with
another lie and, unless it was one to a neighbour, with a new connection. The lies are logged, so that a test can count
them. The name of the daemon says whom it lies to, and ends in the seed: `insider-worker-7` lies to the aggregator and
its shards, `insider-neighbour-7` to its neighbours in a row.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from cli.main import main
from plane.streams.data_streams import write_message
from protos import cluster_pb2 as pb
from protos.pipeline_pb2 import ArrayHeader, PassMessage
from services.files import transfer
from services.protocol.checksums import encode_with_checksum, set_checksum
from services.runtime import process
from services.tensors import chunk_messages
from services.transport.control import attend_client
from services.transport.links import LinkClosed, write_to_call
from tests.insider.lies import Liar
from tests.insider.lives import Lives
from worker.file_exchange import ModelFiles
from worker.pipeline import streams
from worker.pipeline.link import Link

MOST_DELAY_SECONDS = 2.0
NEIGHBOUR_KINDS = ("LinkState", "ArrayHeader")
"""What an insider lies about to its neighbours: credits and arrays."""
SHARING_KINDS = (*NEIGHBOUR_KINDS, "SharedPlaces")
"""The same, and where arrays are in memory that it shares with them."""
CHANGED_ARRAYS = 0.02
"""How many arrays it halves."""


def lie_to_the_aggregator(lives: Lives) -> None:
    """Patch the places where messages to the aggregator, or its shards, leave this process."""

    async def write(call: Any, message: Any) -> None:
        if isinstance(message, pb.WorkerMessage) and lives.over:
            lives.begin_if_over()
            raise LinkClosed("the insider's next life begins")
        lie = lives.tell(message)
        if lie is None:
            await write_to_call(call, message)
            return
        await asyncio.sleep(min(lie.delay_seconds, MOST_DELAY_SECONDS))
        for each in lie.messages:
            await write_to_call(call, each)
        if lie.resets or lives.leaves:
            raise LinkClosed("the insider has left")

    def encode(message: Any) -> bytes:
        changed = type(message)()
        changed.CopyFrom(message)
        lives.change(changed)
        return encode_with_checksum(changed)

    make = ModelFiles.make

    def make_files(lease: int, layout_json: str, files: Mapping[str, bytes]) -> ModelFiles:
        layout = layout_json

        def change(liar: Liar) -> str:
            nonlocal layout
            layout = liar.change_json(layout_json)
            return f"layout ends in {layout[-160:]}"

        lives.perhaps(0.5, change)
        return make(lease, layout, files)

    mock.patch.object(attend_client, "write_to_call", write).start()
    mock.patch.object(transfer, "write_to_call", write).start()
    mock.patch.object(transfer, "encode_with_checksum", encode).start()
    mock.patch.object(chunk_messages, "encode_with_checksum", encode).start()
    mock.patch.object(ModelFiles, "make", staticmethod(make_files)).start()


def lie_to_neighbours(lives: Lives) -> None:
    """Patch the places where messages to the neighbours in a row leave this process."""

    async def write_control(call: Any, message: Any) -> None:
        if lives.over and lives.leaves:
            lives.begin_if_over()
            raise LinkClosed("the insider has left")
        await write_to_call(call, message)

    async def write(stream: Any, *parts: Any) -> None:
        if not lives.leaves:
            lives.begin_if_over()
        message = PassMessage.FromString(b"".join(parts))
        bodies = [getattr(message, name) for name in ("state", "shared", "header") if message.HasField(name)]
        body, lie = next(((each, told) for each in bodies if (told := lives.tell(each))), (None, None))
        if body is None or lie is None:
            await write_message(stream, *parts)
            return
        await asyncio.sleep(min(lie.delay_seconds, MOST_DELAY_SECONDS))
        for told in lie.messages:
            body.CopyFrom(told)
            await write_message(stream, _encode(message))
        if lie.resets or lives.leaves:
            raise LinkClosed("the insider has ended the stream")

    send = Link.send

    def send_array(self: Link, header: ArrayHeader, content: memoryview) -> None:
        def halve(_: Liar) -> str:
            nonlocal content
            header.shape[-1] //= 2
            content = content[: content.nbytes // 2]
            return f"half an array: {list(header.shape)}"

        if content.nbytes % 8 == 0 and header.shape[-1] % 2 == 0:
            lives.perhaps(CHANGED_ARRAYS, halve)
        send(self, header, content)

    mock.patch.object(attend_client, "write_to_call", write_control).start()
    mock.patch.object(streams, "write_message", write).start()
    mock.patch.object(Link, "send", send_array).start()


def _encode(message: PassMessage) -> bytes:
    """Return a message of a link, with the checksums of what it has become."""
    before = b""
    for name in ("state", "header", "shared"):
        if message.HasField(name):
            body = getattr(message, name)
            body.ClearField("own_crc32c")
            set_checksum(body, before)
            before = body.SerializeToString()
    return message.SerializeToString()


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    name, state_dir = (sys.argv[sys.argv.index(flag) + 1] for flag in ("--name", "--state-dir"))
    _, role, seed = name.split("-")
    log = Path(state_dir).parent / f"{name}.lies"
    if role == "neighbour":
        kinds = NEIGHBOUR_KINDS if "--no-shared-memory" in sys.argv else SHARING_KINDS
        lie_to_neighbours(Lives(seed, log, kinds))
    else:
        lie_to_the_aggregator(Lives(seed, log))
    sys.exit(main())
