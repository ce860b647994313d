"""`PUT /v1/files/{sha256}`: a file comes in here, is verified, and goes on to the aggregator."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import Request

from protos.files_pb2 import FileRef
from services.files.store import FileStore
from services.jobs.client import JobsClient
from services.protocol.file_refs import MAX_FILE_BYTES, MAX_PIECE_BYTES, check_ref
from services.threads import finish_in_thread
from web.problems import Problem, refused

PIECE_SECONDS = 60.0
"""Longest wait for the next piece of a file, of 1 MiB."""
_WRITER_DIGITS = 16


class Uploads:
    """Receives files.

    Args:
        store: where they stay for submissions that name them.
    """

    def __init__(self, store: FileStore) -> None:
        self._store = store

    async def receive(self, client: JobsClient, sha256: str, request: Request) -> tuple[FileRef, bool]:
        """Receive a file, and return its reference once the aggregator has it, and whether it was here already.

        Raises:
            Problem: its length is missing or too large, it comes too slowly, or ends early.
            Refused: the caller may not upload it.
            Failed: it is another file, or there is no room.
        """
        ref = FileRef(sha256=sha256, size=_length(request))
        wrong = check_ref(ref)
        if wrong is not None:
            raise refused("sha256", sha256, "64 digits from 0 to f", "give the file's SHA-256")
        lacks = await client.lacks(ref)  # which shows, too, that its caller may upload it
        was_here = not lacks and self._store.last_use_seconds(sha256) is not None
        if was_here:
            return ref, True
        writer = hashlib.sha256(request.state.token.encode()).hexdigest()[:_WRITER_DIGITS]
        upload = await finish_in_thread(self._store.begin, ref, 0, writer)
        if upload is not None:
            with upload:
                async with aclosing(_pieces(request)) as pieces:
                    async for piece in pieces:
                        await finish_in_thread(upload.write, piece)
                await finish_in_thread(upload.finish)
        if lacks:
            await client.upload(self._store, [ref], lambda *_: None, lambda: None)
        return ref, False


def _length(request: Request) -> int:
    text = request.headers.get("content-length")
    if text is None:
        raise Problem(
            411,
            "length-required",
            "Content-Length: none given, expected the file's size; send it with its length",
        )
    if len(text) > 18 or int(text) > MAX_FILE_BYTES:
        raise refused("Content-Length", text, f"at most {MAX_FILE_BYTES}", "split the file", 413, "too-large")
    return int(text)


async def _pieces(request: Request) -> AsyncGenerator[bytes, None]:
    """Yield a body in pieces of 1 MiB, the last of which may be shorter."""
    piece = bytearray()
    async with aclosing(request.stream()) as parts:
        while True:
            try:
                ended = not await asyncio.wait_for(_fill(piece, parts), PIECE_SECONDS)
            except asyncio.TimeoutError:
                raise Problem(
                    408, "malformed", f"body: less than 1 MiB came within {PIECE_SECONDS:g} s; send it faster"
                ) from None
            while len(piece) >= MAX_PIECE_BYTES or (ended and piece):
                yield bytes(piece[:MAX_PIECE_BYTES])
                del piece[:MAX_PIECE_BYTES]
            if ended:
                return


async def _fill(piece: bytearray, parts: AsyncGenerator[bytes, None]) -> bool:
    """Add parts to a piece until it has 1 MiB; return whether there may be more."""
    while len(piece) < MAX_PIECE_BYTES:
        try:
            piece += await anext(parts)
        except StopAsyncIteration:
            return False
    return True
