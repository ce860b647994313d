"""Downloads into a store: cut, damaged or repeated, they end with the same file or with a reason."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import google_crc32c
import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import files_pb2 as pb
from services.errors import Failed, Refused
from services.files.errors import FileMissing, NoRoom
from services.files.fetch import MAX_WRONG_FILES, fetch
from services.files.pieces import read_pieces
from services.files.service import FilesServicer
from services.files.store import FileStore
from services.files.transfer import receive_pieces
from services.protocol.file_refs import MAX_FILE_BYTES, MAX_PIECE_BYTES, make_ref
from services.transport.access.permissions import FILES_OF_AGGREGATOR
from services.transport.backoff import Backoff
from services.transport.security import Security
from services.transport.server import start_server

LIMIT_SECONDS = 60
CONTENT = os.urandom(3 * MAX_PIECE_BYTES + 17)
REF = make_ref(CONTENT)


class Client:
    """A worker's side: its cache, and what it was told."""

    def __init__(self, folder: Path, channel: grpc.aio.Channel, **settings: Any) -> None:
        self.store = FileStore(folder, **settings)
        self.told: list[tuple[int, str]] = []
        self._channel = channel

    async def fetch(self, sha256: str = REF.sha256) -> bytes:
        def tell(_: pb.FileRef, here: int, problem: str) -> None:
            self.told.append((here, problem))

        quick = Backoff(first_seconds=0.01, max_seconds=0.01)
        with await fetch(self._channel, self.store, sha256, "peer", tell, quick) as file:
            return file.read()


def leave_part(store: FileStore, size: int) -> None:
    """Leave the first bytes of the file behind, as a killed process does."""
    former = store.begin(REF, 0)
    assert former is not None
    with former:
        former.write(CONTENT[:size])


Scenario = Callable[[FileStore, grpc.aio.Channel], Awaitable[None]]


def with_server(folder: Path, scenario: Scenario, handlers: Any = None) -> None:
    """Run a scenario with a server's store and a channel to it; `handlers` replace those of its Files service."""

    async def run() -> None:
        store = FileStore(folder / "server")
        served = handlers or FilesServicer(store, FILES_OF_AGGREGATOR).handlers()
        server = await start_server("127.0.0.1:0", Security(), [served], ["tiermesh.Files"])
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            await scenario(store, channel)
        await server.stop(0)

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


@pytest.mark.parametrize("content", [b"", b"x", CONTENT[:MAX_PIECE_BYTES], CONTENT], ids=len)
def test_a_file_arrives_once(tmp_path: Path, content: bytes) -> None:
    async def scenario(server: FileStore, channel: grpc.aio.Channel) -> None:
        sha256 = server.put(content).sha256
        client = Client(tmp_path / "cache", channel)
        assert await client.fetch(sha256) == content
        assert client.told[-1] == (len(content), "")
        told = list(client.told)
        assert await client.fetch(sha256) == content
        assert client.told == told, "it is in the cache"

    with_server(tmp_path, scenario)


def test_a_download_goes_on_where_a_killed_process_left_it(tmp_path: Path) -> None:
    async def scenario(server: FileStore, channel: grpc.aio.Channel) -> None:
        server.put(CONTENT)
        client = Client(tmp_path / "cache", channel)
        leave_part(client.store, 2 * MAX_PIECE_BYTES)
        assert await client.fetch() == CONTENT
        assert client.told[0] == (2 * MAX_PIECE_BYTES, "")

    with_server(tmp_path, scenario)


def test_a_file_that_is_larger_than_its_kind_may_be_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async def scenario(server: FileStore, channel: grpc.aio.Channel) -> None:
        server.put(CONTENT)
        store = FileStore(tmp_path / "cache")
        for limit in (REF.size - 1, 10):
            with pytest.raises(Refused, match=f"{REF.size} bytes, expected at most {limit}"):
                await fetch(channel, store, REF.sha256, "peer", lambda *_: None, most_bytes=limit)
        assert not (tmp_path / "cache").exists()
        (await fetch(channel, store, REF.sha256, "peer", lambda *_: None, most_bytes=REF.size)).close()

    with_server(tmp_path, scenario)


def test_two_workers_download_at_once_into_one_cache(tmp_path: Path) -> None:
    async def scenario(server: FileStore, channel: grpc.aio.Channel) -> None:
        server.put(CONTENT)
        clients = [Client(tmp_path / "cache", channel) for _ in range(3)]
        assert await asyncio.gather(*(each.fetch() for each in clients)) == [CONTENT] * 3
        assert [path.name for path in (tmp_path / "cache").iterdir()] == [REF.sha256]

    with_server(tmp_path, scenario)


class Damaging:
    """Handler of Read that damages the first calls, each in a way of its own."""

    def __init__(self, *faults: str) -> None:
        self._faults = list(faults)
        self.offsets: list[int] = []

    def handlers(self) -> grpc.GenericRpcHandler:
        read = grpc.unary_stream_rpc_method_handler(
            self._read, response_serializer=pb.FilePiece.SerializeToString
        )
        return grpc.method_handlers_generic_handler("tiermesh.Files", {"Read": read})

    async def _read(self, content: bytes, context: Any) -> AsyncIterator[pb.FilePiece]:
        offset = pb.ReadFileRequest.FromString(content).offset
        self.offsets.append(offset)
        fault = self._faults.pop(0) if self._faults else ""
        number = 0
        async for piece in read_pieces(CONTENT, REF, offset):
            number += 1
            if number == 2 and fault == "cut":
                await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
            if number == 2 and fault == "short":
                return
            if number == 2 and fault == "flipped":
                piece.crc32c ^= 1
            if number == 2 and fault == "skipped":
                continue
            if fault == "other file":
                piece.data = bytes(len(piece.data))
                piece.crc32c = google_crc32c.value(piece.data)
            if fault == "other name":
                piece.file.sha256 = "0" * 64
            if fault == "no name":
                piece.ClearField("file")
            if fault == "long name":
                piece.file.size += 1
            if fault == "huge":
                piece.file.size = MAX_FILE_BYTES + 1
            yield piece


@pytest.mark.parametrize("fault", ["cut", "short", "flipped", "skipped"])
def test_a_fault_amid_a_download_costs_the_rest_of_its_call(tmp_path: Path, fault: str) -> None:
    server = Damaging(fault, fault)

    async def scenario(_: FileStore, channel: grpc.aio.Channel) -> None:
        assert await Client(tmp_path / "cache", channel).fetch() == CONTENT

    with_server(tmp_path, scenario, server.handlers())
    assert server.offsets[:3] == [0, MAX_PIECE_BYTES, 2 * MAX_PIECE_BYTES]


@pytest.mark.parametrize("fault", ["other name", "no name"])
def test_a_first_piece_that_names_no_file_or_another(tmp_path: Path, fault: str) -> None:
    async def scenario(_: FileStore, channel: grpc.aio.Channel) -> None:
        assert await Client(tmp_path / "cache", channel).fetch() == CONTENT

    with_server(tmp_path, scenario, Damaging(fault).handlers())


def test_a_file_that_is_said_to_be_too_large_is_no_fault_of_the_job(tmp_path: Path) -> None:
    async def scenario(_: FileStore, channel: grpc.aio.Channel) -> None:
        with pytest.raises(Failed, match=f"{MAX_FILE_BYTES + 1} bytes, expected at most {MAX_FILE_BYTES}"):
            await Client(tmp_path / "cache", channel).fetch()

    with_server(tmp_path, scenario, Damaging("huge").handlers())


def test_a_file_that_arrives_as_another_one_is_asked_for_again_and_given_up(tmp_path: Path) -> None:
    async def once(_: FileStore, channel: grpc.aio.Channel) -> None:
        assert await Client(tmp_path / "cache", channel).fetch() == CONTENT

    with_server(tmp_path, once, Damaging("other file").handlers())

    async def ever(_: FileStore, channel: grpc.aio.Channel) -> None:
        client = Client(tmp_path / "other", channel)
        with pytest.raises(Failed, match=f"{MAX_WRONG_FILES} times, check the disks"):
            await client.fetch()
        assert list((tmp_path / "other").iterdir()) == [], "nothing of it stays"

    with_server(tmp_path, ever, Damaging(*["other file"] * 9).handlers())


def test_what_the_peer_does_not_have_or_the_cache_can_not_take_ends(tmp_path: Path) -> None:
    async def scenario(server: FileStore, channel: grpc.aio.Channel) -> None:
        client = Client(tmp_path / "cache", channel, max_store_bytes=1000)
        with pytest.raises(FileMissing, match="peer: file"):
            await client.fetch()
        server.put(CONTENT)
        with pytest.raises(Refused, match="all files together may have 1000 bytes; raise that limit"):
            await client.fetch()

    with_server(tmp_path, scenario)


def test_a_full_disk_is_told_and_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(server: FileStore, channel: grpc.aio.Channel) -> None:
        server.put(CONTENT)
        client = Client(tmp_path / "cache", channel)
        begin, full = client.store.begin, [1, 2, 3]

        def full_at_first(ref: pb.FileRef, offset: int) -> Any:
            if full:
                full.pop()
                raise NoRoom("No space left on device")
            return begin(ref, offset)

        monkeypatch.setattr(client.store, "begin", full_at_first)
        assert await client.fetch() == CONTENT
        assert client.told.count((0, "No space left on device")) == 3

    with_server(tmp_path, scenario)


def test_a_part_that_is_longer_than_the_file_starts_again(tmp_path: Path) -> None:
    async def scenario(server: FileStore, channel: grpc.aio.Channel) -> None:
        ref = server.put(b"short")
        client = Client(tmp_path / "cache", channel)
        wrong = client.store.begin(pb.FileRef(sha256=ref.sha256, size=100), 0)
        assert wrong is not None
        with wrong:
            wrong.write(b"x" * 50)
        assert await client.fetch(ref.sha256) == b"short"

    with_server(tmp_path, scenario)


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(0, 3 * MAX_PIECE_BYTES),
    offset=st.integers(0, 4 * MAX_PIECE_BYTES),
    length=st.integers(0, 4 * MAX_PIECE_BYTES),
)
def test_any_range_of_a_file(
    tmp_path_factory: pytest.TempPathFactory, size: int, offset: int, length: int
) -> None:
    async def scenario(server: FileStore, channel: grpc.aio.Channel) -> None:
        ref = server.put(CONTENT[:size])
        request = pb.ReadFileRequest(sha256=ref.sha256, offset=offset, length=length)
        pieces = [piece async for piece in receive_pieces(channel, request)]
        end = offset + length if length else size
        assert b"".join(piece.data for piece in pieces) == CONTENT[:size][offset:end]
        assert all(piece.file == ref for piece in pieces)
        assert len(pieces) == max(1, -(-max(0, min(end, size) - offset) // MAX_PIECE_BYTES))

    with_server(tmp_path_factory.mktemp("range"), scenario)


@settings(max_examples=20, deadline=None)
@given(
    faults=st.lists(
        st.sampled_from(["", "cut", "short", "flipped", "skipped", "other name", "long name"]), max_size=4
    ),
    here=st.integers(0, len(CONTENT)),
)
def test_any_faults_end_with_the_file(
    tmp_path_factory: pytest.TempPathFactory, faults: list[str], here: int
) -> None:
    folder = tmp_path_factory.mktemp("any")

    async def scenario(_: FileStore, channel: grpc.aio.Channel) -> None:
        client = Client(folder / "cache", channel)
        leave_part(client.store, here)
        assert await client.fetch() == CONTENT

    with_server(folder, scenario, Damaging(*faults).handlers())
    assert [path.name for path in (folder / "cache").iterdir()] == [REF.sha256]
