"""Calls of an insider that is no daemon: any method of any service, with any requests."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from services.protocol.checksums import encode_with_checksum

CALL_SECONDS = 1.5
"""Time after which an insider ends a call."""
MOST_ANSWERS = 100


def call(
    channel: grpc.Channel,
    method: MethodDescriptor,
    requests: Sequence[Message] | Iterator[Message],
    *,
    metadata: tuple[tuple[str, str], ...] = (),
    seconds: float = CALL_SECONDS,
    answered: threading.Event | None = None,
) -> list[Message]:
    """Call a method and return its answers; none if it fails. Checksums are right.

    Args:
        channel: connection to the peer.
        method: the method.
        requests: its requests; those after the first are for streams alone.
        metadata: metadata of the call.
        seconds: time after which the call ends.
        answered: is set once there is an answer.
    """
    path = f"/{method.containing_service.full_name}/{method.name}"
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    answer = GetMessageClass(method.output_type)
    calls = getattr(channel, kind)(path, request_serializer=_encode, response_deserializer=answer.FromString)
    request = iter(requests) if method.client_streaming else next(iter(requests))
    answers: list[Message] = []
    with suppress(grpc.RpcError):
        result = calls(request, timeout=seconds, metadata=metadata)
        if not method.server_streaming:
            return [result]
        for each in itertools.islice(result, MOST_ANSWERS):
            answers.append(each)
            if answered is not None:
                answered.set()
        result.cancel()
    return answers


def _encode(message: Any) -> bytes:
    if "own_crc32c" not in message.DESCRIPTOR.fields_by_name:
        return bytes(message.SerializeToString())
    message.ClearField("own_crc32c")
    return encode_with_checksum(message)
