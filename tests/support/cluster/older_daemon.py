"""A daemon that speaks only the oldest version of the protocol, and knows nothing of what came after it.

Run it like the command: `python -m tests.support.cluster.older_daemon worker ...`. What came after the oldest version
is listed here: add to it with each version.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from aggregator.jobs_service import JobsServicer
from aggregator.shards import messages
from aggregator.shards.server import session
from cli.main import main
from protos import shards_pb2 as shards
from protos.jobs_pb2 import CheckResult
from services.config.job import JobConfig
from services.errors import Refused
from services.protocol import hello
from services.protocol.envelope import CheckOrder
from services.protocol.hello import HelloExpectations, ProtocolRange
from services.protocol.versions import PROTOCOL_MIN
from services.transport.http2.server import StreamServer
from services.transport.security import Security
from worker import job_on_mesh
from worker.cluster_check import ClusterCheck
from worker.service import WorkerService

OLDER = ProtocolRange(PROTOCOL_MIN, PROTOCOL_MIN)
UNKNOWN_METHODS = {"MeasureLink", "Pass"}
"""Methods between daemons that protocols 4 and 5 added."""
UNKNOWN_ORDERS = (shards.KeepPiece, shards.AssembleSum, shards.DropPieces)
"""Orders to shards that protocol 5 added."""


def speak_oldest_protocol(patch: pytest.MonkeyPatch) -> None:
    """Offer and accept only the oldest version."""
    init = HelloExpectations.__init__
    defaults = init.__defaults__ or ()
    assert hello.PROTOCOL_RANGE in defaults
    older = tuple(OLDER if each == hello.PROTOCOL_RANGE else each for each in defaults)
    patch.setattr(init, "__defaults__", older)
    patch.setattr(hello, "PROTOCOL_VERSION", OLDER.newest)
    patch.setattr(hello, "PROTOCOL_RANGE", OLDER)


def forget_methods(patch: pytest.MonkeyPatch) -> None:
    """Serve no method that came later, on no port."""
    make_handler, start = grpc.method_handlers_generic_handler, StreamServer.start

    def make_older_handler(service: str, handlers: Mapping[str, Any]) -> grpc.GenericRpcHandler:
        known = {name: each for name, each in handlers.items() if name not in UNKNOWN_METHODS}
        return make_handler(service, known)

    async def start_older(
        address: str, security: Security, handlers: Mapping[str, Any], **limits: Any
    ) -> StreamServer:
        known = {path: each for path, each in handlers.items() if path.split("/")[-1] not in UNKNOWN_METHODS}
        return await start(address, security, known, **limits)

    async def check(self: JobsServicer, request: Any, context: Any) -> AsyncIterator[CheckResult]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        yield CheckResult()  # never, but an answer is a stream

    patch.setattr(grpc, "method_handlers_generic_handler", make_older_handler)
    patch.setattr(StreamServer, "start", start_older)
    patch.setattr(JobsServicer, "Check", check)


def forget_messages(patch: pytest.MonkeyPatch) -> None:
    """Send no field that came later, and break on an order that came later: nobody may send one."""

    def take(self: ClusterCheck, order: CheckOrder, job: str) -> None:
        raise AssertionError(f"protocol {OLDER} has no {type(order).__name__}")

    start = WorkerService.start

    async def start_without_port(self: WorkerService, tensor_port: int = 0) -> None:
        await start(self)

    parse_job, unwrap = JobConfig.from_json, messages.unwrap

    def parse_older_job(text: str | bytes) -> JobConfig:
        if "pipeline" in json.loads(text):
            raise Refused("pipeline: unknown key")
        return parse_job(text)

    def unwrap_order(envelope: Any) -> Message | None:
        body = unwrap(envelope)
        assert not isinstance(body, UNKNOWN_ORDERS), f"protocol {OLDER} has no {type(body).__name__}"
        return body

    patch.setattr(JobConfig, "from_json", parse_older_job)
    patch.setattr(session, "unwrap", unwrap_order)
    patch.setattr(ClusterCheck, "take", take)
    patch.setattr(WorkerService, "start", start_without_port)
    for name in ("count_flops_per_token", "find_peak_flops"):
        patch.setattr(job_on_mesh, name, lambda *_: None)


if __name__ == "__main__":
    for forget in (speak_oldest_protocol, forget_methods, forget_messages):
        forget(pytest.MonkeyPatch())
    sys.exit(main())
