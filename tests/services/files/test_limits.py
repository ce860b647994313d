"""Limits of transfers: slow peers hold up nobody else, and are told why they end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import files_pb2 as pb
from services.errors import Failed
from services.files.limits import (
    LEAST_BYTES_PER_SECOND,
    MAX_TRANSFERS,
    MAX_TRANSFERS_OF_CALLER,
    Transfer,
    TransferLimits,
)
from services.files.memory import FilesInMemory
from services.files.pieces import make_piece, read_pieces
from services.files.service import FilesServicer
from services.files.store import FileStore
from services.files.transfer import receive_pieces, upload
from services.protocol.file_refs import MAX_PIECE_BYTES, make_ref
from services.transport.access.enforcement import Caller
from services.transport.access.permissions import FILES_OF_AGGREGATOR, CallerKind
from services.transport.backoff import Backoff
from services.transport.ports.log_limit import LOG_SECONDS, MAX_KINDS, LogLimit
from services.transport.security import Security
from services.transport.server import start_server
from tests.support.skipping_loop import run_skipping

LIMIT_SECONDS = 60
CONTENT = os.urandom(3 * MAX_PIECE_BYTES)
REF = make_ref(CONTENT)
Scenario = Callable[[FileStore, grpc.aio.Channel], Awaitable[None]]


@pytest.fixture
def callers(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what sets who the next calls are from."""
    caller = Caller(CallerKind.WORKER, "slow")

    def call_as(name: str) -> None:
        nonlocal caller
        caller = Caller(CallerKind.WORKER, name)

    monkeypatch.setattr("services.files.service.current_caller", lambda: caller)
    return call_as


def with_server(folder: Path, scenario: Scenario, window_seconds: float | None = None) -> None:
    async def run() -> None:
        store = FileStore(folder)
        limits = TransferLimits(window_seconds=window_seconds)
        servicer = FilesServicer(store, FILES_OF_AGGREGATOR, limits=limits)
        server = await start_server("127.0.0.1:0", Security(), [servicer.handlers()], ["tiermesh.Files"])
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            await scenario(store, channel)
        await server.stop(0)

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


async def trickle(channel: grpc.aio.Channel, content: bytes) -> Any:
    """Begin an upload of one byte; return once the server has it."""
    call = channel.stream_unary("/tiermesh.Files/Write", request_serializer=pb.FilePiece.SerializeToString)()
    await call.write(make_piece(content, make_ref(content), 0, 1))
    return call


async def parts(folder: Path, count: int) -> None:
    """Wait until so many parts are being written."""
    while len([*folder.glob(".*.partial")]) < count:
        await asyncio.sleep(0.01)


def send(channel: grpc.aio.Channel, content: bytes) -> Awaitable[None]:
    ref = make_ref(content)
    quick = Backoff(first_seconds=0.01, max_seconds=0.01)
    return upload(channel, FilesInMemory({ref.sha256: content}), [ref], "peer", quick)


def test_trickled_uploads_of_one_caller_hold_up_no_other(
    tmp_path: Path, callers: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        contents = [b"%d" % number + CONTENT for number in range(MAX_TRANSFERS_OF_CALLER)]
        calls = [await trickle(channel, each) for each in contents]
        await parts(tmp_path, MAX_TRANSFERS_OF_CALLER)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await (await trickle(channel, CONTENT))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert refused.value.details() == (
            "Write of worker slow: 16 transfers of this caller are under way, expected at most 16; try again when one "
            "has ended"
        )
        callers("other")
        await asyncio.wait_for(send(channel, CONTENT), 5)
        request = pb.ReadFileRequest(sha256=REF.sha256)
        assert b"".join([piece.data async for piece in receive_pieces(channel, request)]) == CONTENT
        for each in calls:
            each.cancel()

    with_server(tmp_path, scenario)
    lines = [each.message for each in caplog.records if each.name == "tiermesh.files"]
    assert len(lines) == 1 and lines[0].startswith("Write of worker slow: 16 transfers")


def test_a_trickled_upload_does_not_hold_its_file(tmp_path: Path, callers: Callable[[str], None]) -> None:
    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        slow = await trickle(channel, CONTENT)
        await parts(tmp_path, 1)
        callers("other")
        await asyncio.wait_for(send(channel, CONTENT), 5)
        assert store.read(REF, len(CONTENT)) == CONTENT
        await slow.write(pb.FilePiece(offset=1, data=b"", crc32c=0))
        assert pb.FileRef.FromString(await slow) == REF, "the slow one learns that it is done"
        assert [each.name for each in tmp_path.iterdir()] == [REF.sha256]

    with_server(tmp_path, scenario)


def test_a_newer_upload_of_the_same_caller_goes_on_with_the_older_one(
    tmp_path: Path, callers: Callable[[str], None]
) -> None:
    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        former = channel.stream_unary(
            "/tiermesh.Files/Write", request_serializer=pb.FilePiece.SerializeToString
        )()
        async for piece in read_pieces(CONTENT, REF, 0):
            if piece.offset < 2 * MAX_PIECE_BYTES:
                await former.write(piece)
        while store.offset(REF, "worker slow") != 2 * MAX_PIECE_BYTES:
            await asyncio.sleep(0.01)
        rest = bytes(2 * MAX_PIECE_BYTES) + CONTENT[2 * MAX_PIECE_BYTES :]
        await upload(channel, FilesInMemory({REF.sha256: rest}), [REF], "peer")
        assert store.has([REF])
        with pytest.raises(grpc.aio.AioRpcError, match="a newer upload by the same caller goes on with it"):
            await former

    with_server(tmp_path, scenario)


@pytest.mark.parametrize("method", ["Write", "Read"])
def test_a_transfer_below_the_least_rate_ends_with_the_rate(
    tmp_path: Path, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    large = os.urandom(40 * MAX_PIECE_BYTES)  # more than what is on the way at once

    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        if method == "Write":
            call = await trickle(channel, CONTENT)
        else:
            request = pb.ReadFileRequest(sha256=store.put(large).sha256).SerializeToString()
            call = channel.unary_stream("/tiermesh.Files/Read")(request)
            while not [each for each in caplog.records if "KiB/s" in each.message]:
                await asyncio.sleep(0.05)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            if method == "Write":
                await call
            async for _ in call:
                pass
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        line = ended.value.details() or ""
        assert line.startswith(f"{method} of 127.0.0.1: ")
        assert line.endswith(" KiB/s, expected at least 64 over 0.3 s; continue where it stopped")

    with_server(tmp_path, scenario, window_seconds=0.3)


def test_callers_share_what_all_may_have() -> None:
    async def scenario() -> None:
        limits = TransferLimits()
        ended: list[str] = []

        async def transfer(caller: str) -> None:
            with limits.begin("Write", caller) as own:
                try:
                    await own.wait(asyncio.Event().wait())
                except Failed as failed:
                    ended.append(str(failed))

        tasks = [asyncio.create_task(transfer(f"caller {number % 4}")) for number in range(MAX_TRANSFERS)]
        await asyncio.sleep(0)
        for number in range(4):
            tasks.append(asyncio.create_task(transfer(f"late {number}")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(ended) == 4 and all("takes the place of a transfer of caller" in each for each in ended)
        with (
            ExitStack() as stack,
            pytest.raises(Failed, match="64 transfers are under way, expected at most 64"),
        ):
            for _ in range(MAX_TRANSFERS_OF_CALLER):  # one with as many as the others gets no more
                stack.enter_context(limits.begin("Read", "greedy"))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with ExitStack() as stack:  # nobody holds a place
            for number in range(MAX_TRANSFERS):
                stack.enter_context(limits.begin("Read", f"{number % 4}"))

    asyncio.run(scenario())


@settings(max_examples=100, deadline=None)
@given(
    pieces=st.lists(st.tuples(st.floats(0, 40), st.integers(0, MAX_PIECE_BYTES)), min_size=1, max_size=30),
    work_seconds=st.floats(0, 100),
)
def test_the_wait_for_a_peer_follows_from_what_it_moves(
    pieces: list[tuple[float, int]], work_seconds: float
) -> None:
    window_seconds = 30.0

    async def scenario(now: Callable[[], float]) -> None:
        limits = TransferLimits(window_seconds=window_seconds)
        waited = moved = 0.0
        try:
            with limits.begin("Write", "peer") as transfer:
                for seconds, size in pieces:
                    began = now()
                    try:
                        await transfer.wait(asyncio.sleep(seconds))
                    finally:
                        waited += now() - began
                    await asyncio.sleep(work_seconds)  # our own disk does not count
                    transfer.moved(size)
                    moved += size
        except Failed:
            assert waited >= window_seconds - 1e-3
            slowest = max(seconds for seconds, _ in pieces)
            assert slowest > window_seconds or moved / waited < LEAST_BYTES_PER_SECOND
        else:
            assert waited <= window_seconds + moved / LEAST_BYTES_PER_SECOND + 1e-3
        assert waited <= window_seconds + moved / LEAST_BYTES_PER_SECOND + 1e-3

    run_skipping(scenario)


def test_a_transfer_that_ended_amid_our_work_says_so_after_it() -> None:
    async def scenario() -> None:
        with TransferLimits().begin("Write", "peer") as transfer:
            assert isinstance(transfer, Transfer)
            transfer.end(Failed("to make room"))
            with pytest.raises(Failed, match="to make room"):
                transfer.moved(1)
            assert not transfer.closed.is_set()
        assert transfer.closed.is_set()

    asyncio.run(scenario())


def test_lines_about_many_callers_are_forgotten() -> None:
    now = 0.0
    limit = LogLimit(lambda: now)
    assert [limit.suffix(number) for number in range(MAX_KINDS + 5)] == [""] * MAX_KINDS + [None] * 5
    assert limit.suffix(0) is None
    now += LOG_SECONDS
    assert limit.suffix("another") == ""
    assert limit.suffix(0) == "", "what it had left out is forgotten too"
    assert len(limit._next_seconds) == 2
