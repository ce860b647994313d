"""Download of a peer's file into a store: to disk as it arrives, continued after a break or a restart, verified."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import IO

import grpc

from protos.files_pb2 import FileRef
from services.errors import Failed, TiermeshError
from services.files.errors import FileDamaged, NoRoom, UploadUnderWay
from services.files.service import IDLE_SECONDS
from services.files.store import FileStore
from services.files.transfer import Retries, receive_pieces
from services.protocol.file_refs import check_ref
from services.threads import finish_in_thread
from services.transport.backoff import Backoff

MAX_WRONG_FILES = 3
"""Number of times that a file may arrive with another SHA-256 before the download fails."""

Tell = Callable[[FileRef, int, str], None]
"""Takes the file, the number of its bytes that are here, and why the download does not go on; empty if it does."""


async def fetch(
    channel: grpc.aio.Channel,
    store: FileStore,
    sha256: str,
    peer: str,
    tell: Tell,
    backoff: Backoff | None = None,
) -> IO[bytes]:
    """Download a file into a store unless it is there, and return it held, see `FileStore.hold`.

    Whatever may pass (a lost connection, a full disk, another process that downloads the same file into the same
    folder) is waited for and tried again until the caller cancels. Each reason is logged once.

    Args:
        channel: connection to the peer.
        store: store that gets the file.
        sha256: SHA-256 of the file.
        peer: name of the peer, for log and errors.
        tell: called as the download begins, gets on, and waits.
        backoff: pauses between attempts.

    Raises:
        FileMissing: the peer does not have the file.
        Refused: the peer refuses, or the file is larger than the whole store may be.
        Failed: the file arrived damaged again and again, or the disk can't be read.
    """
    retries, wrong = Retries(peer, backoff), 0
    ref: FileRef | None = None
    while True:
        held = await asyncio.to_thread(store.hold, sha256)
        if held is not None:
            return held
        try:
            ref = ref or await _ask_size(channel, sha256, peer)
            await _fetch_on(channel, store, ref, tell, retries)
            continue
        except _WrongFile as damaged:
            wrong += 1
            code, reason = grpc.StatusCode.UNAVAILABLE, str(damaged)
            if wrong == MAX_WRONG_FILES:
                raise Failed(f"{peer}: {reason}; {wrong} times, check the disks of both hosts") from None
        except FileDamaged as damaged:
            code, reason = grpc.StatusCode.DATA_LOSS, str(damaged)
        except (NoRoom, UploadUnderWay) as error:
            code, reason = grpc.StatusCode.UNAVAILABLE, str(error)
        except grpc.aio.AioRpcError as error:
            code, reason = error.code(), error.details() or error.code().name.lower()
        except asyncio.TimeoutError:
            code, reason = grpc.StatusCode.UNAVAILABLE, f"no piece within {IDLE_SECONDS:g} s"
        here = await asyncio.to_thread(store.offset, ref) if ref is not None else None
        tell(ref or FileRef(sha256=sha256), here or 0, reason)
        await retries.wait(code, reason)


class _WrongFile(TiermeshError):
    """All bytes of a file have arrived, and they are not those that the SHA-256 names."""


async def _ask_size(channel: grpc.aio.Channel, sha256: str, peer: str) -> FileRef:
    """Return the reference to a peer's file, whose size its first piece says.

    Raises:
        FileDamaged: the piece has no reference, or another file's.
        Refused: the file is too large.
    """
    async with contextlib.aclosing(receive_pieces(channel, sha256, 0)) as pieces:
        async for piece in pieces:
            ref = piece.file
            refusal = check_ref(ref)
            if ref.sha256 != sha256:
                break
            if refusal is not None:
                raise Failed(f"{peer}: {refusal}")
            return ref
    raise FileDamaged(f"file {sha256[:12]}: the first piece does not say which file it is from")


async def _fetch_on(
    channel: grpc.aio.Channel, store: FileStore, ref: FileRef, tell: Tell, retries: Retries
) -> None:
    """Write the rest of a file to the store, verified at the end.

    Raises:
        FileDamaged: a piece was damaged, or is not the next one.
        _WrongFile: the file has another SHA-256.
    """
    offset = await asyncio.to_thread(store.offset, ref)
    if offset is None:
        return
    tell(ref, offset, "")
    with await asyncio.to_thread(store.begin, ref, offset) as upload:
        async with contextlib.aclosing(receive_pieces(channel, ref.sha256, offset)) as pieces:
            async for piece in pieces:
                if piece.data:
                    await finish_in_thread(upload.write, piece.data)
                    retries.progressed()
                    tell(ref, upload.size, "")
        if upload.size < ref.size:
            raise FileDamaged(
                f"file {ref.sha256[:12]}: {upload.size} of {ref.size} bytes arrived; continuing there"
            )
        try:
            await finish_in_thread(upload.finish)
        except FileDamaged as damaged:
            raise _WrongFile(str(damaged)) from None
