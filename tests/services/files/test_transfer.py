"""Uploads and downloads over gRPC: cut, damaged or repeated, they end with the same bytes or with a reason."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import files_pb2 as pb
from services.errors import Failed, Refused
from services.files.errors import NoRoom
from services.files.limits import TransferLimits
from services.files.memory import FilesInMemory
from services.files.memory_file import MemoryFile
from services.files.pieces import read_pieces
from services.files.service import FilesServicer
from services.files.store import FileStore
from services.files.transfer import receive_pieces, upload
from services.protocol.bounds import BOUNDS
from services.protocol.file_refs import MAX_PIECE_BYTES, make_ref
from services.transport.access.permissions import FILES_OF_AGGREGATOR
from services.transport.backoff import Backoff
from services.transport.security import Security
from services.transport.server import start_server

LIMIT_SECONDS = 60
MOST = 64 << 20
LARGE = os.urandom(3 * MAX_PIECE_BYTES + 17)
Scenario = Callable[[FileStore, grpc.aio.Channel], Awaitable[None]]


def with_server(folder: Path, scenario: Scenario, window_seconds: float = 60.0, **settings: Any) -> None:
    async def run() -> None:
        store = FileStore(folder, **settings)
        limits = TransferLimits(window_seconds=window_seconds)
        servicer = FilesServicer(store, FILES_OF_AGGREGATOR, limits=limits)
        server = await start_server("127.0.0.1:0", Security(), [servicer.handlers()], ["tiermesh.Files"])
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            await scenario(store, channel)
        await server.stop(0)

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


def source(*contents: bytes) -> FilesInMemory:
    return FilesInMemory({make_ref(each).sha256: each for each in contents})


async def read(channel: grpc.aio.Channel, ref: pb.FileRef) -> bytes:
    request = pb.ReadFileRequest(sha256=ref.sha256)
    return b"".join([piece.data async for piece in receive_pieces(channel, request)])


def quick() -> Backoff:
    return Backoff(first_seconds=0.01, max_seconds=0.01)


@pytest.mark.parametrize("content", [b"", b"x", LARGE[:MAX_PIECE_BYTES], LARGE], ids=len)
def test_a_file_arrives_and_is_sent_once(tmp_path: Path, content: bytes) -> None:
    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        ref = make_ref(content)
        await upload(channel, source(content), [ref, ref], "peer")
        assert store.read(ref, MOST) == content
        await upload(channel, FilesInMemory({}), [ref], "peer")  # nothing is read a second time
        assert await read(channel, ref) == content

    with_server(tmp_path, scenario)


def test_many_files_are_asked_for_in_several_calls(tmp_path: Path) -> None:
    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        contents = [b"%d" % number for number in range(BOUNDS["MissingRequest.files"].count + 3)]
        refs = [make_ref(each) for each in contents]
        await upload(channel, source(*contents), refs, "peer")
        assert store.has(refs)

    with_server(tmp_path, scenario)


def test_an_upload_continues_where_a_dead_server_left_it(tmp_path: Path) -> None:
    store, ref = FileStore(tmp_path), make_ref(LARGE)
    writing = store.begin(ref, 0, "127.0.0.1")
    assert writing is not None
    with writing:
        writing.write(LARGE[: 2 * MAX_PIECE_BYTES])

    class Tail:
        """Source that has only the rest of the file."""

        def open(self, sha256: str) -> tuple[MemoryFile, int]:
            return MemoryFile([bytes(2 * MAX_PIECE_BYTES), LARGE[2 * MAX_PIECE_BYTES :]]), len(LARGE)

    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        await upload(channel, Tail(), [ref], "peer")
        assert store.read(ref, MOST) == LARGE

    with_server(tmp_path, scenario)


def test_an_upload_continues_where_a_dead_client_left_it(tmp_path: Path) -> None:
    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        call = channel.stream_unary(
            "/tiermesh.Files/Write", request_serializer=pb.FilePiece.SerializeToString
        )()
        async for piece in read_pieces(LARGE[:MAX_PIECE_BYTES], make_ref(LARGE), 0):
            await call.write(piece)
        await call.done_writing()  # as the server sees a connection that is lost
        with pytest.raises(grpc.aio.AioRpcError, match=f"{MAX_PIECE_BYTES} of {len(LARGE)} bytes arrived"):
            await call
        rest = bytes(MAX_PIECE_BYTES) + LARGE[MAX_PIECE_BYTES:]
        await upload(channel, FilesInMemory({make_ref(LARGE).sha256: rest}), [make_ref(LARGE)], "peer")
        assert store.read(make_ref(LARGE), MOST) == LARGE

    with_server(tmp_path, scenario)


def test_two_uploads_of_one_file_at_once(tmp_path: Path) -> None:
    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        ref = make_ref(LARGE)
        await asyncio.gather(*(upload(channel, source(LARGE), [ref], "peer", quick()) for _ in range(4)))
        assert store.read(ref, MOST) == LARGE

    with_server(tmp_path, scenario)


def test_a_full_store_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        refusals: list[int] = []
        begin = store.begin

        def full_at_first(*arguments: Any) -> Any:
            if len(refusals) < 3:
                refusals.append(1)
                raise NoRoom("No space left on device")
            return begin(*arguments)

        monkeypatch.setattr(store, "begin", full_at_first)
        refs = [make_ref(b"content")]
        await upload(channel, source(b"content"), refs, "peer", quick(), on_no_room=told.append)
        assert (len(refusals), store.has([make_ref(b"content")])) == (3, True)

    with_server(tmp_path, scenario)
    assert told == ["peer: No space left on device; trying again"]
    sides = [each.message for each in caplog.records if each.name == "tiermesh.files"]
    assert sides == ["No space left on device", *told], "each side says so once"


@pytest.mark.parametrize(
    ("pieces", "code"),
    [
        ([], grpc.StatusCode.INVALID_ARGUMENT),
        ([b"\xff\xff"], grpc.StatusCode.DATA_LOSS),
        ([pb.FilePiece(file=make_ref(b"abc"), data=b"abc", crc32c=1)], grpc.StatusCode.DATA_LOSS),
        ([pb.FilePiece(file=pb.FileRef(sha256="../../x", size=3))], grpc.StatusCode.INVALID_ARGUMENT),
        ([pb.FilePiece(file=make_ref(b"abc"), offset=2)], grpc.StatusCode.ABORTED),
        ([pb.FilePiece(file=make_ref(b"abc")), pb.FilePiece(offset=1)], grpc.StatusCode.DATA_LOSS),
        ([pb.FilePiece(file=make_ref(b"abc"))], grpc.StatusCode.DATA_LOSS),
        ([pb.FilePiece(file=pb.FileRef(sha256="0" * 64, size=1 << 50))], grpc.StatusCode.INVALID_ARGUMENT),
        ([pb.FilePiece(data=bytes(MAX_PIECE_BYTES + 1))], grpc.StatusCode.INVALID_ARGUMENT),
    ],
    ids=["none", "garbage", "checksum", "path", "offset", "gap", "short", "size", "long"],
)
def test_a_write_that_is_not_right_is_refused_by_name(
    tmp_path: Path, pieces: list[Any], code: grpc.StatusCode
) -> None:
    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        call = channel.stream_unary("/tiermesh.Files/Write")(
            each if isinstance(each, bytes) else each.SerializeToString() for each in pieces
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        line = caught.value.details() or ""
        assert (caught.value.code(), line.isprintable()) == (code, True), line
        assert len(line) <= 300

    with_server(tmp_path / "files", scenario)
    assert {path.name for path in tmp_path.iterdir()} <= {"files"}


def test_a_peer_that_stops_amid_an_upload_does_not_hold_the_file(tmp_path: Path) -> None:
    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        call = channel.stream_unary(
            "/tiermesh.Files/Write", request_serializer=pb.FilePiece.SerializeToString
        )()
        await call.write(pb.FilePiece(file=make_ref(LARGE)))
        await upload(channel, source(LARGE), [make_ref(LARGE)], "peer", quick())
        assert store.has([make_ref(LARGE)])
        call.cancel()

    with_server(tmp_path, scenario, window_seconds=0.3)


def test_what_the_server_refuses_for_good_is_not_repeated(tmp_path: Path) -> None:
    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        with pytest.raises(Refused, match=r"peer: file .*expected at most 3"):
            await upload(channel, source(b"content"), [make_ref(b"content")], "peer", quick())
        with pytest.raises(grpc.aio.AioRpcError, match="not here, or removed"):
            await read(channel, make_ref(b"abc"))

    with_server(tmp_path, scenario, max_file_bytes=3)


def test_a_file_that_is_always_damaged_fails(tmp_path: Path) -> None:
    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        ref = make_ref(b"content")
        with pytest.raises(Failed, match="5 times in a row"):
            await upload(channel, FilesInMemory({ref.sha256: b"CONTENT"}), [ref], "peer", quick())

    with_server(tmp_path, scenario)


@settings(max_examples=25, deadline=None)
@given(requests=st.lists(st.binary(max_size=60), min_size=1, max_size=3))
def test_any_bytes_end_with_a_status_and_leave_no_other_file(
    tmp_path_factory: pytest.TempPathFactory, requests: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("any")

    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        for method in ("Missing", "Read"):
            for each in requests:
                make = channel.unary_unary if method == "Missing" else channel.unary_stream
                try:
                    call = make(f"/tiermesh.Files/{method}")(each)
                    _ = await call if method == "Missing" else [piece async for piece in call]
                except grpc.aio.AioRpcError as error:
                    assert (error.details() or "").isprintable()
        try:
            await channel.stream_unary("/tiermesh.Files/Write")(iter(requests))
        except grpc.aio.AioRpcError as error:
            assert (error.details() or "").isprintable()

    with_server(folder / "files", scenario)
    assert {path.name for path in folder.iterdir()} <= {"files"}
