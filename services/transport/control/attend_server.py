"""The server's end of every control stream: receive Hello, check it, run the session until the stream ends.

Every peer of a role comes in here, so this is the place to check who it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from protos.cluster_pb2 import Hello
from services.protocol.hello import HelloFault, HelloRefusal
from services.transport.access.enforcement import check_daemon, confirm_caller
from services.transport.control.control_streams import ControlReader, ControlStream
from services.transport.limits import HELLO_SECONDS
from services.transport.links import EPOCH_KEY, LinkClosed

SentT = TypeVar("SentT", bound=Message)
ReceivedT = TypeVar("ReceivedT", bound=Message)


async def serve_attend(
    context: grpc.aio.ServicerContext[Any, Any],
    message_type: type[ReceivedT],
    *,
    unwrap: Callable[[ReceivedT], Any],
    check: Callable[[Hello], HelloRefusal | None],
    serve: Callable[[Hello, ControlStream[Any, ReceivedT]], Awaitable[None]],
    hello_seconds: float = HELLO_SECONDS,
) -> None:
    """Serve one control stream until it ends.

    Args:
        context: the call.
        message_type: type of the client's messages.
        unwrap: returns the content of a message.
        check: returns why a Hello is refused; None if it is accepted.
        serve: runs the stream of a client whose Hello was accepted. A LinkClosed that it raises ends the call with
            its status and text.
        hello_seconds: longest wait for Hello.

    Raises:
        Denied: the caller's certificate is for another role or name; `admit_call` ends the call with it.
    """
    messages = ControlReader(context.read, message_type)
    hello = await receive_hello(context, messages, unwrap, hello_seconds)
    check_daemon(hello.role, hello.name)
    refusal = check(hello)
    if refusal is not None:
        epoch = ((EPOCH_KEY, str(refusal.obeyed_epoch)),) if refusal.obeyed_epoch else ()
        await context.abort(_status_of(refusal), refusal.reason, epoch)
    confirm_caller(context)
    try:
        await serve(hello, ControlStream(messages, context.write))
    except LinkClosed as closed:
        await context.abort(closed.code, str(closed))


def _status_of(refusal: HelloRefusal) -> grpc.StatusCode:
    """Return the status of a refused Hello; ABORTED tells an aggregator that it no longer leads."""
    deposed = refusal.fault is HelloFault.DEPOSED
    return grpc.StatusCode.ABORTED if deposed else grpc.StatusCode.FAILED_PRECONDITION


async def receive_hello(
    context: grpc.aio.ServicerContext[Any, Any],
    messages: ControlReader[ReceivedT],
    unwrap: Callable[[ReceivedT], Any],
    limit_seconds: float = HELLO_SECONDS,
) -> Hello:
    """Return the Hello that a client's stream starts with, or abort the call if there is none.

    Args:
        context: the call.
        messages: reader of its stream.
        unwrap: returns the content of a message's oneof.
        limit_seconds: longest wait for the message.
    """
    first = None
    try:
        first = await asyncio.wait_for(messages.next(), limit_seconds)
    except asyncio.TimeoutError:
        pass
    except LinkClosed as closed:
        await context.abort(closed.code, str(closed))
    hello = unwrap(first) if first is not None else None
    if not isinstance(hello, Hello):
        text = f"the first message must be Hello, within {limit_seconds:g} s"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        raise AssertionError("abort raises")
    return hello
