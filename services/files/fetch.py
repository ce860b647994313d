"""Download of a peer's file into a store: to disk as it arrives, continued after a break or a restart, verified."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol, TypeVar

import grpc

from protos.files_pb2 import FilePiece, FileRef, ReadFileRequest
from services.errors import Failed, Refused
from services.files.errors import FileDamaged, NoRoom, UploadUnderWay, WrongFile
from services.files.transfer import IDLE_SECONDS, Metadata, Retries, receive_pieces
from services.files.upload import Upload
from services.protocol.file_refs import check_ref
from services.threads import finish_in_thread
from services.transport.backoff import Backoff

MAX_WRONG_FILES = 3
"""Number of times that a file may arrive with another SHA-256 before the download fails."""

Held_co = TypeVar("Held_co", covariant=True)

Tell = Callable[[FileRef, int, str], None]
"""Takes the file, the number of its bytes that are here, and why the download does not go on; empty if it does."""


class Receiver(Protocol[Held_co]):
    """A store that receives files: a `FileStore`, or `FilesInMemory`.

    Attributes:
        max_file_bytes: largest size of one file.
    """

    max_file_bytes: int

    def hold(self, sha256: str) -> Held_co | None:
        """Return a complete file, which stays as long as its holder needs it; None if it is not here."""

    def part_bytes(self, sha256: str) -> int:
        """Return how many bytes of a file are here."""

    def begin(self, ref: FileRef, offset: int) -> Upload | None:
        """Begin or continue to receive a file; return None if it is complete."""


async def fetch(
    channel: grpc.aio.Channel,
    store: Receiver[Held_co],
    sha256: str,
    peer: str,
    tell: Tell,
    backoff: Backoff | None = None,
    *,
    most_bytes: int | None = None,
) -> Held_co:
    """Download a file into a store unless it is there, and return it held, see `Receiver.hold`.

    Whatever may pass (a lost connection, a full disk, another process that downloads the same file into the same
    folder) is waited for and tried again until the caller cancels. Each reason is logged once.

    Args:
        channel: connection to the peer.
        store: store that gets the file.
        sha256: SHA-256 of the file.
        peer: name of the peer, for log and errors.
        tell: called as the download begins, gets on, and waits.
        backoff: pauses between attempts.
        most_bytes: largest size of the file; None for that of the store.

    Raises:
        FileMissing: the peer does not have the file.
        Refused: the peer refuses, or the file is larger than the whole store may be.
        Failed: the file arrived damaged again and again, or the disk can't be read.
    """
    retries, wrong, ref, here = Retries(peer, backoff), 0, FileRef(sha256=sha256), 0

    def note(told: FileRef, size: int) -> None:
        nonlocal ref, here
        if size > here and told == ref:
            retries.progressed()
        ref, here = told, size
        tell(ref, here, "")

    while True:
        held = await asyncio.to_thread(store.hold, sha256)
        if held is not None:
            return held
        try:
            await fetch_once(channel, store, ReadFileRequest(sha256=sha256), note, most_bytes=most_bytes)
            continue
        except WrongFile as damaged:
            wrong, here = wrong + 1, 0
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
        tell(ref, here, reason)
        await retries.wait(code, reason)


async def fetch_once(
    channel: grpc.aio.Channel,
    store: Receiver[object],
    request: ReadFileRequest,
    tell: Callable[[FileRef, int], None],
    metadata: Metadata = (),
    *,
    most_bytes: int | None = None,
) -> None:
    """Download what a store lacks of a peer's file, in one attempt. The next one continues there.

    Args:
        channel: connection to the peer.
        store: store that gets the file.
        request: the file.
        tell: called with the file and the number of its bytes that are here, at first and as they arrive.
        metadata: gRPC metadata of the call, such as a person's token.
        most_bytes: largest size of the file; None for that of the store.

    Raises:
        FileDamaged: a piece was damaged, or is not the next one.
        WrongFile: the file has another SHA-256.
        NoRoom: the disk is full.
        UploadUnderWay: another process downloads the file into the same folder.
        grpc.aio.AioRpcError: the call failed.
        asyncio.TimeoutError: no piece came in time.
    """
    request.offset = await asyncio.to_thread(store.part_bytes, request.sha256)
    async with contextlib.aclosing(receive_pieces(channel, request, metadata)) as pieces:
        first = await anext(pieces, None)
        if first is None:
            raise FileDamaged(f"file {request.sha256[:12]}: no piece arrived; read it again")
        if most_bytes is not None and first.file.size > most_bytes:
            raise Refused(str(check_ref(first.file, most_bytes)))
        refusal = check_ref(first.file, store.max_file_bytes)
        if refusal is not None:
            raise Failed(str(refusal))
        is_longer = request.offset > first.file.size  # the part here can't be one of that file
        upload = await asyncio.to_thread(store.begin, first.file, 0 if is_longer else request.offset)
        if upload is None:
            return
        with upload:
            if is_longer:
                raise FileDamaged(
                    f"file {request.sha256[:12]}: {request.offset} bytes were here; starting again"
                )
            tell(first.file, upload.size)
            piece: FilePiece | None = first
            while piece is not None:
                if not await finish_in_thread(upload.write, piece.data):
                    return
                tell(first.file, upload.size)
                piece = await anext(pieces, None)
            await finish_in_thread(upload.finish)
