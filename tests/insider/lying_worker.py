"""The worker's daemon as an insider: its messages are changed where they leave the process.

It has many lives. In each it is honest until it lies, as `lies.py` says; soon after that its next life begins, with a
new connection and another lie. The lies are logged, so that a test can count them. The name of the daemon ends in the
seed: `insider-worker-7`.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from google.protobuf.message import Message

from cli.main import main
from protos import cluster_pb2 as pb
from services.files import transfer
from services.protocol.checksums import encode_with_checksum
from services.runtime import process
from services.tensors import chunk_messages
from services.transport.control import attend_client
from services.transport.links import LinkClosed, write_to_call
from tests.insider.lies import Afterwards, Liar, Lie, Trick
from worker.file_exchange import ModelFiles

LIFE_SECONDS = 0.5
"""Time from a lie to the next life."""
MOST_DELAY_SECONDS = 2.0


class Lives:
    """The lives of the insider, one after the other.

    Args:
        seed: what all of them follow from.
        log: file of the lies.
    """

    def __init__(self, seed: str, log: Path) -> None:
        self._seed, self._log = seed, log
        self._lock = threading.Lock()  # headers are encoded on several threads
        self._number = 0
        self._begin()

    def _begin(self) -> None:
        self._number += 1
        self._liar = Liar(f"{self._seed}.{self._number}")
        self._over_at = float("inf")

    @property
    def over(self) -> bool:
        """Whether the next life is due."""
        return time.monotonic() > self._over_at

    def begin_if_over(self) -> None:
        """Begin the next life if it is due."""
        with self._lock:
            if self.over:
                self._begin()

    @property
    def leaves(self) -> bool:
        """Whether this life is to end now."""
        return self._liar.lies and self._liar.afterwards is Afterwards.LEAVES

    def tell(self, message: Message) -> Lie | None:
        """Return what is told in place of a message; None if that is the truth."""
        with self._lock:
            before = len(self._liar.told)
            lie = self._liar.tell(message)
            self._note(before)
            return lie

    def change(self, message: Any) -> None:
        """Change a field of a message, if that is the lie; no other lie is possible where it is encoded."""
        lie = self.tell(message)
        if lie is not None and lie.trick is Trick.FIELD:
            message.CopyFrom(lie.messages[0])

    def change_layout(self, text: str) -> str:
        """Return a layout, or a lie about it."""
        with self._lock:
            if self._liar.draw.random() < 0.5:
                return text
            before, changed = len(self._liar.told), self._liar.change_json(text)
            self._liar.told.append(f"layout ends in {changed[-160:]}")
            self._note(before)
            return changed

    def _note(self, before: int) -> None:
        new = self._liar.told[before:]
        if new:
            self._over_at = min(self._over_at, time.monotonic() + LIFE_SECONDS)
            with self._log.open("a") as file:
                file.writelines(
                    f"{self._seed}.{self._number}: {each.encode('unicode_escape').decode()}\n" for each in new
                )


def lie_from_now_on(lives: Lives) -> None:
    """Patch the places where messages leave this process."""

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
        return make(lease, lives.change_layout(layout_json), files)

    mock.patch.object(attend_client, "write_to_call", write).start()
    mock.patch.object(transfer, "write_to_call", write).start()
    mock.patch.object(transfer, "encode_with_checksum", encode).start()
    mock.patch.object(chunk_messages, "encode_with_checksum", encode).start()
    mock.patch.object(ModelFiles, "make", staticmethod(make_files)).start()


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    name, state_dir = (sys.argv[sys.argv.index(flag) + 1] for flag in ("--name", "--state-dir"))
    lie_from_now_on(Lives(name.rpartition("-")[2], Path(state_dir).parent / f"{name}.lies"))
    sys.exit(main())
