"""Methods that take one request: from a .proto service and the object that serves it to handlers for a gRPC server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from services.protocol.bounds import MessageTooLarge, check_received, fit
from services.protocol.plain_text import make_printable

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


def service_handler(service: ServiceDescriptor, servicer: object) -> grpc.GenericRpcHandler:
    """Return a handler that serves each method by the method of `servicer` with the same name.

    Args:
        service: descriptor of a service whose methods take one request each.
        servicer: object whose methods take request and context. Those that answer with several messages are
            async generators.

    Raises:
        AttributeError: `servicer` lacks a method.
    """
    handlers = {}
    for method in service.methods:
        stream, unary = grpc.unary_stream_rpc_method_handler, grpc.unary_unary_rpc_method_handler
        make_handler = stream if method.server_streaming else unary
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        handlers[method.name] = make_handler(
            getattr(servicer, method.name), request.FromString, response.SerializeToString
        )
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


class RequestParsingHandler:
    """A `grpc.GenericRpcHandler` that refuses requests that can't be parsed and answers that are too large.

    Texts of the other requests are made printable.

    grpcio itself would answer such a request with the name of one of its own exceptions.

    Args:
        inner: handler that serves the parsed requests. Methods that answer with several messages are async
            generators.
    """

    def __init__(self, inner: grpc.GenericRpcHandler) -> None:
        self._inner = inner

    def service(self, details: Any) -> Any:
        """Return the handler of a call, as `grpc.GenericRpcHandler.service` does."""
        handler = self._inner.service(details)
        if handler is None or handler.request_streaming or handler.request_deserializer is None:
            return handler
        parse, serialize = handler.request_deserializer, handler.response_serializer

        async def parse_or_abort(content: bytes, context: Context) -> Any:
            try:
                request = parse(content)
            except DecodeError:
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"{details.method}: {len(content)} bytes received, expected its request message; check the "
                    "connection for damage, and that both ends run the same version",
                )
            if isinstance(request, Message):  # health checks and reflection have messages, too
                make_printable(request)
                try:
                    check_received(request)
                except MessageTooLarge as error:
                    await context.abort(
                        grpc.StatusCode.INVALID_ARGUMENT, f"{details.method}: {error.fault}; shorten it"
                    )
            return request

        async def fit_or_abort(message: Any, context: Context) -> Any:
            try:
                if isinstance(message, Message):
                    fit(message)
            except MessageTooLarge as error:  # the answer grew beyond what its maker foresaw
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{details.method}: {error}")
            return message

        async def unary(content: bytes, context: Context) -> Any:
            answer = await handler.unary_unary(await parse_or_abort(content, context), context)
            return await fit_or_abort(answer, context)

        async def stream(content: bytes, context: Context) -> AsyncIterator[Any]:
            async for message in handler.unary_stream(await parse_or_abort(content, context), context):
                yield await fit_or_abort(message, context)

        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, response_serializer=serialize)
        return grpc.unary_unary_rpc_method_handler(unary, response_serializer=serialize)
