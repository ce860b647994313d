"""Requests that can't be parsed, refused in a line: grpcio would answer with the name of its own exception."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class ParsedRequests:
    """A `grpc.GenericRpcHandler` around another, whose calls of one request see only those that are one.

    Args:
        served: that one; calls that it answers with several messages are async generators.
    """

    def __init__(self, served: grpc.GenericRpcHandler) -> None:
        self._served = served

    def service(self, details: Any) -> Any:
        """The handler of a call."""
        handler = self._served.service(details)
        if handler is None or handler.request_streaming or handler.request_deserializer is None:
            return handler
        parse, serialize = handler.request_deserializer, handler.response_serializer

        async def request_of(content: bytes, context: Context) -> Any:
            try:
                return parse(content)
            except DecodeError:
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"{details.method}: {len(content)} bytes that are no request; were they damaged, or are they of "
                    "another version?",
                )

        async def one(content: bytes, context: Context) -> Any:
            return await handler.unary_unary(await request_of(content, context), context)

        async def several(content: bytes, context: Context) -> AsyncIterator[Any]:
            async for message in handler.unary_stream(await request_of(content, context), context):
                yield message

        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(several, response_serializer=serialize)
        return grpc.unary_unary_rpc_method_handler(one, response_serializer=serialize)
