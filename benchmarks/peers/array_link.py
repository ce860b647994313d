"""One end of a link between two stages over loopback: a worker's own, or a plain gRPC stream of the same pieces.

`array_link.py tiermesh|grpc STAGE FOLDER` prints the port that it listens on. FOLDER has certificates, or is empty for
plain text. Standard input then has the addresses of both stages, as JSON, and a line for each round. In a round stage 0
sends `ARRAYS` activations to stage 1. Each stage prints as JSON the moment of its start, that of its end, both on the
monotonic clock, and the CPU seconds that it took.

The gRPC stream is written as users of grpcio write it: `grpc.aio`, a protobuf message for each piece, and no checks.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from protos import cluster_pb2 as pb
from protos.pipeline_pb2 import ACTIVATION, ArrayHeader, PassMessage
from protos.tensors_pb2 import FLOAT32
from services.pipeline.exchange import ArraySizes
from services.pipeline.schedule import Pass
from services.pipeline.split import Split
from services.runtime import process
from services.transport.http2.server import StreamServer
from services.transport.security import Security
from worker.pipeline.array_plan import ArrayPlan
from worker.pipeline.messages import PIECE_BYTES
from worker.pipeline.row_links import RowLinks
from worker.pipeline.streams import Sharing

ARRAYS = 64
ELEMENTS = 1024 * 1024
BYTES = 4 * ARRAYS * ELEMENTS
"""Bytes that a round carries."""
_EPOCH = 1
_ROW = _EPOCH << 32 | 1
_METHOD = "/benchmark.Arrays/Send"
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Round = Callable[[int], None]
"""What one end does in a round, by the round's number."""


def main(kind: str, stage: int, folder: str) -> None:
    """Serve, and run a round for each line of standard input."""
    process.tune_allocator()  # as daemons do
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="loop", daemon=True).start()

    def call(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    make = _link_workers if kind == "tiermesh" else _stream_by_grpc
    run = make(stage, Path(folder) if folder else None, call)
    for number, _ in enumerate(sys.stdin, 1):
        started, cpu_seconds = time.monotonic(), time.process_time()
        run(number)
        print(json.dumps([started, time.monotonic(), time.process_time() - cpu_seconds]), flush=True)


def _read_addresses(port: int) -> list[str]:
    print(port, flush=True)
    addresses: list[str] = json.loads(sys.stdin.readline())
    return addresses


def _link_workers(stage: int, folder: Path | None, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> Round:
    name = f"stage-{stage}"
    security = (
        Security(folder / "worker.pem", folder / "worker.key", folder / "authority.pem")
        if folder
        else Security()
    )
    links = RowLinks(name, name, security, sharing=Sharing(enabled=False))
    addresses = _read_addresses(call(StreamServer.start("127.0.0.1:0", security, links.handlers())).port)

    async def form_row() -> None:
        row = pb.Row(job="benchmark", row=_ROW)
        for each, address in enumerate(addresses):
            seat = f"stage-{each}"
            row.seats.add(name=seat, incarnation=seat, address=address, first_stage=each, stages=1)
        links.set_row(row, _EPOCH)

    call(form_row())
    array = np.ones(ELEMENTS, np.float32)
    plan = ArrayPlan(Split((1, 1)), "1f1b", ArraySizes(array.dtype, ELEMENTS, 0), FLOAT32)

    def run(number: int) -> None:
        lease = pb.Lease(
            job="benchmark", generation=1, step=1, lease=_EPOCH << 32 | number, phase=pb.TRAIN, row=_ROW
        )
        exchange = links.open_lease(lease, plan)
        for index in range(ARRAYS):
            one = Pass(False, 1, index)
            if stage:
                exchange.receive(one)
            else:
                exchange.send(one, array)
        exchange.close()

    return run


def _stream_by_grpc(
    stage: int, folder: Path | None, call: Callable[[Coroutine[Any, Any, Any]], Any]
) -> Round:
    array = np.ones(ELEMENTS, np.float32)
    sent = threading.Semaphore(0)

    async def send(request: bytes, context: Any) -> AsyncIterator[PassMessage]:
        content = array.view(np.uint8).data
        for index in range(ARRAYS):
            for start in range(0, len(content), PIECE_BYTES):
                header = ArrayHeader(
                    job="benchmark", micro_batch=index, kind=ACTIVATION, offset_bytes=start, shape=[ELEMENTS]
                )
                yield PassMessage(header=header, payload=bytes(content[start : start + PIECE_BYTES]))
        sent.release()

    async def serve() -> int:
        server = grpc.aio.server(options=_OPTIONS)
        handler = grpc.unary_stream_rpc_method_handler(
            send, response_serializer=PassMessage.SerializeToString
        )
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("benchmark.Arrays", {"Send": handler})]
        )
        if folder is None:
            port: int = server.add_insecure_port("127.0.0.1:0")
        else:
            key, certificate, authority = _read_certificates(folder)
            credentials = grpc.ssl_server_credentials(
                [(key, certificate)], authority, require_client_auth=True
            )
            port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        serving.append(server)
        return port

    async def connect() -> Any:
        if folder is None:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        key, certificate, authority = _read_certificates(folder)
        credentials = grpc.ssl_channel_credentials(authority, key, certificate)
        return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)

    async def receive() -> None:
        method = channel.unary_stream(_METHOD, response_deserializer=PassMessage.FromString)
        content = np.empty(0, np.uint8)
        async for message in method(b""):
            start = message.header.offset_bytes
            if not start:
                content = np.empty(4 * ELEMENTS, np.uint8)
            content[start : start + len(message.payload)] = np.frombuffer(message.payload, np.uint8)

    serving: list[grpc.aio.Server] = []
    address = _read_addresses(call(serve()))[0]
    if stage == 0:

        def wait(number: int) -> None:
            assert serving  # a server that nothing refers to stops
            sent.acquire()

        return wait
    channel = call(connect())
    return lambda number: call(receive())


def _read_certificates(folder: Path) -> tuple[bytes, bytes, bytes]:
    return (
        (folder / "worker.key").read_bytes(),
        (folder / "worker.pem").read_bytes(),
        (folder / "authority.pem").read_bytes(),
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
