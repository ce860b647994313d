"""Files in memory: they go and come as files on disk do, into memory in parts, and no more than what is expected."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from itertools import pairwise

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.files_pb2 import FileRef, ReadFileRequest
from services.errors import Refused
from services.files.errors import FileDamaged, FileMissing, UploadUnderWay
from services.files.fetch import fetch
from services.files.memory import MAX_UNEXPECTED, FilesInMemory
from services.files.memory_file import MemoryFile
from services.files.service import FilesServicer
from services.files.transfer import upload, upload_missing
from services.protocol.file_refs import MAX_PIECE_BYTES, make_ref
from services.transport.access.permissions import FILES_OF_DAEMON
from services.transport.security import Security
from services.transport.server import start_server

LIMIT_SECONDS = 60
CONTENT = os.urandom(3 * MAX_PIECE_BYTES + 17)
REF = make_ref(CONTENT)
PIECE = slice(0, MAX_PIECE_BYTES)


def in_parts(content: bytes, *stops: int) -> MemoryFile:
    """Return a file whose bytes are cut at some places."""
    places = [0, *stops, len(content)]
    return MemoryFile([bytearray(content[a:b]) for a, b in pairwise(places)])


def with_server(
    scenario: Callable[[FilesInMemory, grpc.aio.Channel], Awaitable[None]], max_bytes: int = 0
) -> None:
    async def run() -> None:
        files = FilesInMemory(max_bytes=max_bytes)
        handlers = [FilesServicer(files, FILES_OF_DAEMON).handlers()]
        server = await start_server("127.0.0.1:0", Security(), handlers, ["tiermesh.Files"])
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            await scenario(files, channel)
        await server.stop(0)

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


def receive(files: FilesInMemory, ref: FileRef, *pieces: bytes) -> None:
    """Receive a file from its beginning."""
    arriving = files.begin(ref, 0)
    assert arriving is not None
    with arriving:
        for piece in pieces:
            arriving.write(piece)
        arriving.finish()


@given(st.lists(st.binary(max_size=5), max_size=6), st.integers(0, 30), st.binary(max_size=30))
def test_a_file_in_parts_is_their_bytes(parts: list[bytes], start: int, data: bytes) -> None:
    file, whole = MemoryFile([bytearray(each) for each in parts]), bytearray(b"".join(parts))
    assert file.size == len(whole)
    assert file.read(start, len(data)) == whole[start : start + len(data)]
    assert file.make_ref() == make_ref(bytes(whole))
    data = data[: max(0, len(whole) - start)]
    file.write(start, data)
    whole[start : start + len(data)] = data
    assert file.read(0, file.size) == whole


def test_a_file_goes_from_parts_into_expected_memory_and_back() -> None:
    async def scenario(files: FilesInMemory, channel: grpc.aio.Channel) -> None:
        memory, own = in_parts(bytes(len(CONTENT)), 7, 2 * MAX_PIECE_BYTES), FilesInMemory()
        own.add(REF, in_parts(CONTENT, 1, 5, MAX_PIECE_BYTES + 3))
        files.expect(REF, memory)
        await upload(channel, own, [REF], "peer")
        assert memory.read(0, memory.size) == CONTENT
        target = in_parts(bytes(len(CONTENT)), 100)
        receiver = FilesInMemory()
        receiver.expect(REF, target)
        assert await fetch(channel, receiver, REF.sha256, "peer", lambda *_: None) is target
        assert target.read(0, target.size) == CONTENT

    with_server(scenario)


def test_an_interrupted_upload_continues_where_it_stopped() -> None:
    async def scenario(files: FilesInMemory, channel: grpc.aio.Channel) -> None:
        memory = in_parts(bytes(len(CONTENT)), 9)
        files.expect(REF, memory)
        arriving = files.begin(REF, 0)
        assert arriving is not None
        with arriving:
            arriving.write(CONTENT[PIECE])
            with pytest.raises(UploadUnderWay):
                files.begin(REF, 0)
            with pytest.raises(FileDamaged, match=f"{MAX_PIECE_BYTES} of {len(CONTENT)} bytes"):
                arriving.finish()
        told: list[int] = []
        rest = FilesInMemory({REF.sha256: bytes(MAX_PIECE_BYTES) + CONTENT[MAX_PIECE_BYTES:]})
        await upload_missing(channel, rest, [REF], tell=lambda ref, size: told.append(size))
        assert told[0] == MAX_PIECE_BYTES
        assert memory.read(0, memory.size) == CONTENT

    with_server(scenario)


def test_a_damaged_file_is_not_complete_and_begins_again() -> None:
    files, memory = FilesInMemory(), MemoryFile([bytearray(3)])
    files.expect(make_ref(b"abc"), memory)
    with pytest.raises(FileDamaged, match="SHA-256"):
        receive(files, make_ref(b"abc"), b"abd")
    assert files.hold(make_ref(b"abc").sha256) is None
    assert files.offset(make_ref(b"abc")) == 0
    receive(files, make_ref(b"abc"), b"a", b"bc")
    assert files.hold(make_ref(b"abc").sha256) is memory


def test_a_file_that_its_receiver_does_not_accept_is_not_complete() -> None:
    def refuse() -> None:
        raise Refused("no such file")

    files = FilesInMemory()
    files.expect(make_ref(b"abc"), MemoryFile([bytearray(3)]), refuse)
    with pytest.raises(Refused, match="no such file"):
        receive(files, make_ref(b"abc"), b"abc")
    assert files.hold(make_ref(b"abc").sha256) is None


def test_a_file_of_another_size_than_expected_is_refused() -> None:
    files = FilesInMemory(max_bytes=9)
    files.expect(make_ref(b"abc"), MemoryFile([bytearray(4)]))
    with pytest.raises(Refused, match="3 bytes, expected 4"):
        files.begin(make_ref(b"abc"), 0)


def test_few_and_small_files_are_received_unasked() -> None:
    files = FilesInMemory(max_bytes=3)
    with pytest.raises(Refused, match="4 bytes, expected at most 3"):
        files.begin(make_ref(b"abcd"), 0)
    refs = [make_ref(bytes([number])) for number in range(MAX_UNEXPECTED + 1)]
    for number, ref in enumerate(refs):
        receive(files, ref, bytes([number]))
    assert [files.hold(ref.sha256) is not None for ref in refs] == [False, *[True] * MAX_UNEXPECTED]


def test_a_file_is_kept_until_it_is_removed() -> None:
    files, file = FilesInMemory(), MemoryFile([b"abc"])
    ref = file.make_ref()
    files.add(ref, file)
    assert files.read_piece(ReadFileRequest(sha256=ref.sha256, offset=1)).data == b"bc"
    files.remove(MemoryFile([b"abc"]))
    assert files.hold(ref.sha256) is file, "another file of the same bytes"
    files.remove(file)
    with pytest.raises(FileMissing):
        files.open(ref.sha256)
