"""Tests that no text of a received message can act on a terminal or a log, whatever the field."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass

from protos import cluster_pb2, jobs_pb2, plane_pb2, tensors_pb2
from services.protocol.checksums import encode_with_checksum
from services.protocol.plain_text import _UNTOUCHED_FIELDS, _UNTOUCHED_MESSAGES, limit_of, make_printable
from services.transport.control.control_streams import ControlReader
from services.transport.links import LinkClosed
from services.transport.request_handlers import RequestParsingHandler, service_handler
from tests.support.hostile import HOSTILE, LONG, fill_texts, texts_of, variants
from tests.support.processor_time import limit_work

FILES = (cluster_pb2, jobs_pb2, plane_pb2, tensors_pb2)
MESSAGES = [
    message
    for file in FILES
    for message in file.DESCRIPTOR.message_types_by_name.values()
    if message.name not in _UNTOUCHED_MESSAGES
]
ENVELOPES = [message for message in MESSAGES if "own_crc32c" in message.fields_by_name]


def check_clean(message: Any) -> None:
    """Check that each text of a message is printable, and as short as its field allows."""
    for field, text in texts_of(message, _UNTOUCHED_MESSAGES):
        if field.name not in _UNTOUCHED_FIELDS:
            assert text.isprintable(), field.full_name
            assert len(text) <= limit_of(field), field.full_name


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.name)
def test_every_text_of_every_message_is_made_printable(kind: Descriptor) -> None:
    for text in (HOSTILE, HOSTILE + "x" * 100_000):
        for message in variants(kind, text):
            make_printable(message)
            check_clean(message)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.name)
def test_a_printable_message_is_not_changed(kind: Descriptor) -> None:
    for message in variants(kind, "Übung 5 µs, gut"):
        before = type(message)()
        before.CopyFrom(message)
        make_printable(message)
        assert message == before


@pytest.mark.parametrize("kind", ENVELOPES, ids=lambda kind: kind.name)
def test_messages_of_control_streams_are_made_printable_or_refused(kind: Descriptor) -> None:
    async def read_all() -> None:
        for message in variants(kind, HOSTILE):
            message.ClearField("own_crc32c")

            async def read(content: bytes = encode_with_checksum(message)) -> bytes:
                return content

            try:
                received = await ControlReader(read, GetMessageClass(kind)).next()
            except LinkClosed as closed:  # an id or a hash of this length
                assert str(closed).isprintable() and "expected at most" in str(closed)
                continue
            assert received is not None
            check_clean(received)

    asyncio.run(read_all())


class Recorder:
    """Servicer of any service, which keeps the requests."""

    def __init__(self, streaming: set[str]) -> None:
        self.requests: list[Any] = []
        self._streaming = streaming

    def __getattr__(self, name: str) -> Any:
        async def answer(request: Any, context: Any) -> None:
            self.requests.append(request)

        async def stream(request: Any, context: Any) -> AsyncIterator[None]:
            self.requests.append(request)
            yield None

        return stream if name in self._streaming else answer


METHODS = [
    method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if not method.client_streaming
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name)
def test_requests_of_every_method_are_made_printable(method: Any) -> None:
    service = method.containing_service
    unary_services = [each for each in service.methods if not each.client_streaming]
    if len(unary_services) != len(service.methods):
        pytest.skip("the service has control streams, too, and makes its own handlers")
    servicer = Recorder({each.name for each in service.methods if each.server_streaming})

    class Details:
        method = ""
        invocation_metadata = ()

    Details.method = f"/{service.full_name}/{method.name}"
    handler: Any = RequestParsingHandler(service_handler(service, servicer)).service(Details)
    request = GetMessageClass(method.input_type)()
    fill_texts(request, HOSTILE[:8])

    async def call() -> None:
        if method.server_streaming:
            async for _ in handler.unary_stream(request.SerializeToString(), None):
                pass
        else:
            await handler.unary_unary(request.SerializeToString(), None)

    asyncio.run(call())
    (received,) = servicer.requests
    check_clean(received)
    assert isinstance(handler, grpc.RpcMethodHandler)


def test_work_does_not_grow_with_the_texts() -> None:
    failure = cluster_pb2.Failure(job=LONG, reason=LONG)
    with limit_work(5):
        make_printable(failure)
    assert failure.reason.endswith("xxx")
