"""Downloads of checkpoints' files: within the caps, by people alone, and with a reason when the optimizer is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc.aio import Metadata

from aggregator.downloads import MOST_DOWNLOADS, Downloads
from aggregator.stored_checkpoints import StoredCheckpoints, restore_layout
from protos.cluster_pb2 import CheckpointFiles, CheckpointRequest
from protos.files_pb2 import FilePiece, ReadFileRequest
from services.checkpoints.format import FORMAT_VERSION, STATE_FILE, State
from services.errors import Failed
from services.files.errors import FileMissing
from services.files.pieces import make_piece
from services.files.service import FilesServicer, ReadPiece
from services.files.store import FileStore
from services.files.transfer import receive_pieces
from services.protocol.file_refs import MAX_PIECE_BYTES, make_ref
from services.tensors.layout import Layout
from services.transport.access.enforcement import Caller
from services.transport.access.permissions import FILES_OF_AGGREGATOR, FILES_OF_DAEMON, CallerKind
from services.transport.security import Security
from services.transport.server import start_server

CONTENT = bytes(range(256)) * (3 * MAX_PIECE_BYTES // 256)
REF = make_ref(CONTENT)


async def read_piece(request: ReadFileRequest) -> FilePiece:
    return make_piece(CONTENT, REF, request.offset, request.length)


def with_server(
    scenario: Callable[[FileStore, grpc.aio.Channel], Any],
    folder: Path,
    checkpoints: Callable[[], AbstractContextManager[ReadPiece]] | None,
    permission: str = FILES_OF_AGGREGATOR,
    restore: Callable[[FileStore, str], Awaitable[None]] | None = None,
) -> None:
    async def run() -> None:
        store = FileStore(folder)
        handlers = FilesServicer(
            store, permission, checkpoints=checkpoints, restore=restore and partial(restore, store)
        ).handlers()
        server = await start_server("127.0.0.1:0", Security(), [handlers], ["tiermesh.Files"])
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            await scenario(store, channel)
        await server.stop(0)

    asyncio.run(asyncio.wait_for(run(), 60))


@contextmanager
def reading() -> Any:
    yield read_piece


async def read(channel: grpc.aio.Channel, request: ReadFileRequest) -> bytes:
    return b"".join([piece.data async for piece in receive_pieces(channel, request)])


@pytest.mark.parametrize(
    ("kind", "reads", "downloads"),
    [
        (CallerKind.PERSON, False, True),
        (CallerKind.ADMIN, False, True),
        (CallerKind.WORKER, True, False),
        (CallerKind.METRICS, False, False),
    ],
)
def test_people_read_checkpoints_and_no_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: CallerKind, reads: bool, downloads: bool
) -> None:
    monkeypatch.setattr("services.files.service.current_caller", lambda: Caller(kind, "x"))

    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        uploaded = ReadFileRequest(sha256=store.put(b"uploaded").sha256)
        for request, is_allowed in (
            (uploaded, reads),
            (ReadFileRequest(sha256=REF.sha256, job="a"), downloads),
        ):
            if is_allowed:
                assert await read(channel, request)
                continue
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await read(channel, request)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED

    with_server(scenario, tmp_path, reading)


def test_where_there_are_no_checkpoints_the_answer_says_so(tmp_path: Path) -> None:
    async def scenario(_: FileStore, channel: grpc.aio.Channel) -> None:
        with pytest.raises(grpc.aio.AioRpcError, match="no checkpoints here; ask the aggregator"):
            await read(channel, ReadFileRequest(sha256=REF.sha256, job="a"))

    with_server(scenario, tmp_path, None, FILES_OF_DAEMON)


def test_a_download_counts_while_it_goes_on(tmp_path: Path) -> None:
    downloads = Downloads(None, lambda cap: None)

    @contextmanager
    def open_reader() -> Any:
        with downloads.begin("ann") as download:

            async def read_on(request: ReadFileRequest) -> FilePiece:
                piece = await read_piece(request)
                await download.take(len(piece.data))
                return piece

            yield read_on

    async def scenario(_: FileStore, channel: grpc.aio.Channel) -> None:
        request = ReadFileRequest(sha256=REF.sha256, job="a")
        assert await read(channel, request) == CONTENT
        with ExitStack() as stack:
            for _ in range(MOST_DOWNLOADS // 2):
                stack.enter_context(downloads.begin("ann"))
            with pytest.raises(
                grpc.aio.AioRpcError, match="person ann: has 16 downloads under way"
            ) as refused:
                await read(channel, request)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await read(channel, request) == CONTENT

    with_server(scenario, tmp_path, open_reader)


@pytest.mark.parametrize(
    ("end", "expected", "text"),
    [
        (asyncio.CancelledError(), Failed, "the optimizer was lost; try again when it is connected"),
        (asyncio.TimeoutError(), Failed, "the optimizer has not answered"),
        (
            grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), "Socket closed"),
            Failed,
            "the optimizer has not answered: Socket closed; try again",
        ),
        (
            grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, Metadata(), Metadata(), "it was removed"),
            FileMissing,
            "it was removed",
        ),
    ],
    ids=["cancelled", "late", "lost", "removed"],
)
def test_a_read_says_why_the_optimizer_has_not_answered(
    end: BaseException, expected: type[Exception], text: str
) -> None:
    class Losing:
        async def read_piece(self, _: ReadFileRequest) -> FilePiece:
            raise end

        async def list_files(self, _: CheckpointRequest) -> None:
            raise end

    async def scenario() -> None:
        link: Any = Losing()
        for call in (
            StoredCheckpoints(link).read_piece(ReadFileRequest()),
            StoredCheckpoints(link).list_files(CheckpointRequest()),
        ):
            with pytest.raises(expected, match=text):
                await call

    asyncio.run(scenario())


def test_a_damaged_answer_of_the_optimizer_is_told() -> None:
    class Damaged:
        async def list_files(self, _: CheckpointRequest) -> None:
            return None

    async def scenario() -> None:
        link: Any = Damaged()
        with pytest.raises(Failed, match="the optimizer's answer to Checkpoint was damaged"):
            await StoredCheckpoints(link).list_files(CheckpointRequest())

    asyncio.run(scenario())


LAYOUT = Layout.build([("block.weight", (2, 3), True, "block.weight", False)])


def make_state() -> bytes:
    """Return the bytes of a checkpoint's `state.json`."""
    layout = LAYOUT.to_json()
    return State(
        format=FORMAT_VERSION, job="a", generation=0, step=4, config={}, layout=layout, files={}
    ).dump()


@pytest.mark.parametrize(
    ("sha256", "state", "code"),
    [
        (LAYOUT.hash, make_state(), None),
        (REF.sha256, make_state(), grpc.StatusCode.NOT_FOUND),
        (LAYOUT.hash, make_state()[:-9], grpc.StatusCode.UNAVAILABLE),
    ],
    ids=["its layout", "another file", "a damaged checkpoint"],
)
def test_a_running_jobs_layout_that_the_store_lacks_comes_from_its_checkpoint(
    tmp_path: Path, sha256: str, state: bytes, code: grpc.StatusCode | None
) -> None:
    class Optimizer:
        async def list_files(self, request: CheckpointRequest) -> CheckpointFiles:
            assert (request.job, request.newest) == ("a", True)
            return CheckpointFiles(step=4, files={STATE_FILE: make_ref(state)})

        async def read_piece(self, request: ReadFileRequest) -> FilePiece:
            assert (request.job, request.step) == ("a", 4)
            return make_piece(state, make_ref(state), request.offset, 100)

    async def restore(store: FileStore, missed: str) -> None:
        link: Any = Optimizer()
        runs: Any = {"a": SimpleNamespace(admission=SimpleNamespace(layout_hash=LAYOUT.hash))}
        await restore_layout(StoredCheckpoints(link), store, runs, missed)

    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        request = ReadFileRequest(sha256=sha256)
        if code is None:
            assert await read(channel, request) == LAYOUT.dumps().encode()
            assert store.names() == {LAYOUT.hash}
            return
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await read(channel, request)
        assert refused.value.code() is code and not store.names()

    with_server(scenario, tmp_path, None, restore=restore)
