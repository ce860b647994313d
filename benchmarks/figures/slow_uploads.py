"""slow_uploads: how much longer a person's upload of 1 MB takes while another person sends 20 files byte by byte.

A real aggregator with certificates serves both. The slow person's client comes again as soon as a transfer ends. Each
upload is a new file, with a connection of its own. The median of several uploads counts, without and beside the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from benchmarks.harness.report import median, milliseconds, report
from cli.certs.authority import issue, make_authority
from cli.certs.folder import write_private_file
from protos.files_pb2 import FilePiece
from services.files.memory import FilesInMemory
from services.files.pieces import make_piece
from services.files.transfer import upload
from services.protocol.file_refs import make_ref
from services.runtime.launcher import DaemonProcess, kill_all
from services.tasks import start_awaited
from services.transport.access.permissions import CallerKind
from services.transport.security import Security
from services.transport.server import open_channel

NAME = "slow_uploads"
MOST_SECONDS = 2.0
UPLOADS = 9
SLOW = 20
BYTE_SECONDS = 20.0
_BYTES = 1_000_000
_AGAIN_SECONDS = 0.5
_LIMIT_SECONDS = 60.0


def run(uploads: int = UPLOADS) -> bool:
    """Measure and report the figure.

    Args:
        uploads: number of uploads without the slow ones, and beside them.
    """
    with tempfile.TemporaryDirectory() as folder:
        alone, beside = asyncio.run(_measure(Path(folder), uploads))
    details = (f"alone {milliseconds(alone)}", f"beside {SLOW} slow uploads {milliseconds(beside)}")
    return report(f"{NAME}_seconds_more", median(beside) - median(alone), MOST_SECONDS, *details)


async def _measure(folder: Path, uploads: int) -> tuple[list[float], list[float]]:
    security = _write_certificates(folder)
    flags = ("--tls-cert", "aggregator.pem", "--tls-key", "aggregator.key", "--tls-ca", "authority.pem")
    words = [word if word.startswith("--") else str(folder / word) for word in flags]
    aggregator = DaemonProcess(
        "aggregator", "aggregator", folder, (*words, "--state-dir", str(folder / "state"))
    )
    try:
        await aggregator.start().wait_ready()
        quick = security["quick"]
        await _upload_seconds(aggregator.address, quick)  # the first one makes the folder
        alone = [await _upload_seconds(aggregator.address, quick) for _ in range(uploads)]
        async with _slow_uploads(aggregator.address, security["slow"]):
            return alone, [await _upload_seconds(aggregator.address, quick) for _ in range(uploads)]
    finally:
        kill_all([aggregator])


async def _upload_seconds(address: str, security: Security) -> float:
    """Return how long the upload of a new file takes, with its connection."""
    content = os.urandom(_BYTES)
    ref = make_ref(content)
    started = time.perf_counter()
    async with open_channel(address, security, own_connection=True) as channel:
        sending = upload(channel, FilesInMemory({ref.sha256: content}), [ref], "aggregator")
        await asyncio.wait_for(sending, _LIMIT_SECONDS)
    return time.perf_counter() - started


@asynccontextmanager
async def _slow_uploads(address: str, security: Security) -> AsyncIterator[None]:
    """Keep files on their way to an aggregator, a byte at a time, while the block runs."""
    async with open_channel(address, security, own_connection=True) as channel:
        begun = asyncio.Semaphore(0)
        tasks = [start_awaited(_send_slowly(channel, begun)) for _ in range(SLOW)]
        try:
            for _ in tasks:
                await asyncio.wait_for(begun.acquire(), _LIMIT_SECONDS)
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _send_slowly(channel: grpc.aio.Channel, begun: asyncio.Semaphore) -> None:
    while True:
        content, offset = os.urandom(_BYTES), 0
        call = channel.stream_unary("/tiermesh.Files/Write", request_serializer=FilePiece.SerializeToString)()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while offset < len(content):
                await call.write(make_piece(content, make_ref(content), offset, 1))
                begun.release()
                offset += 1
                await asyncio.sleep(BYTE_SECONDS)
        await asyncio.sleep(_AGAIN_SECONDS)


def _write_certificates(folder: Path) -> dict[str, Security]:
    """Write the certificates of an aggregator and of two persons; return them by name."""
    authority = make_authority("benchmark", 2)
    (folder / "authority.pem").write_bytes(authority.certificate_pem())
    made = {}
    for name in ("aggregator", "quick", "slow"):
        kind = CallerKind.AGGREGATOR if name == "aggregator" else CallerKind.PERSON
        pair = issue(authority, kind, name, ["127.0.0.1"], 1)
        write_private_file(folder / f"{name}.key", pair.key_pem())
        (folder / f"{name}.pem").write_bytes(pair.certificate_pem())
        made[name] = Security(folder / f"{name}.pem", folder / f"{name}.key", folder / "authority.pem")
    return made
