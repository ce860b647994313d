"""Bytes on the wire: envelopes, chunks, HTTP/2 headers."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass

from services.protocol import checksums, envelope
from services.tensors import chunk_messages
from services.transport.http2 import headers as http2
from services.transport.http2.messages import prefix
from services.transport.links import INCARNATION_KEY, SESSION_KEY
from tests.support.outward.common import (
    digest,
    draw_numbers,
)
from tests.support.outward.messages import fill_message, find_methods, list_arms, set_field


def _message_type(kind: Descriptor, number: int) -> Descriptor:
    found = kind.fields_by_number[number].message_type
    assert found is not None, f"{kind.full_name}, field {number}: not a message"
    return found


def describe_wire() -> dict[str, Any]:
    found: dict[str, Any] = {"envelopes": {}, "chunks": {}, "http2": _encode_headers()}
    for path in ("/tiermesh.Cluster/Attend", "/tiermesh.Optimizer/Attend"):
        method = find_methods()[path]
        for direction, kind in (("request", method.input_type), ("response", method.output_type)):
            message_class: Any = GetMessageClass(kind)
            for arm in list_arms(kind):
                body = fill_message(_message_type(kind, arm))
                sealed = envelope.wrap(message_class, 7, body)
                found["envelopes"][f"{path} {direction} {arm}"] = checksums.encode_with_checksum(sealed).hex()
    header = _message_type(find_methods()["/tiermesh.Cluster/Exchange"].input_type, 1)
    values = draw_numbers(40_000, 1)
    for dtype in (1, 2, 3):
        identity = fill_message(header)
        set_field(identity, 11, dtype)
        chunk = chunk_messages.pack_chunk(identity, 3, values)
        message = chunk_messages.serialize_chunk(chunk)
        found["chunks"][f"dtype {dtype}"] = {
            "before the payload": chunk_messages.serialize_in_parts(chunk)[0].hex(),
            "payload": digest(chunk.payload),
            "message": digest(message),
            "values": digest(chunk_messages.deserialize_chunk(message).values()),
        }
    return found


def _encode_headers() -> dict[str, str]:
    metadata = ((INCARNATION_KEY, "0123abcd"), (SESSION_KEY, "7"), ("some-bin", b"\x00\xff"))
    blocks = {
        "request": http2.request_headers("http", "127.0.0.1:7071", "/tiermesh.Cluster/Exchange", metadata),
        "response": http2.response_headers(metadata),
        "ended": http2.status_headers(grpc.StatusCode.OK, ""),
        "refused": http2.status_headers(grpc.StatusCode.INVALID_ARGUMENT, "größer als 100 %"),
    }
    found = {name: http2.HeaderCodec().encode(each).hex() for name, each in blocks.items()}
    return {**found, "prefix of a message": prefix(1_000_000).hex()}
