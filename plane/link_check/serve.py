"""The server's end of a link check: it compares what the client sends, and sends its own values or the sums."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import grpc

from plane.link_check.rounds import (
    RoundStream,
    WrongValues,
    client_values,
    compare,
    server_values,
)
from plane.streams.shared_memory_link import ServerTensorLink
from protos.tensors_pb2 import LinkRound
from services.errors import Refused
from services.instrumentation.failpoints import hit_failpoint
from services.printable import printable
from services.tensors.chunk_messages import ChunkRefused, TensorChunk
from services.tensors.kernels.arithmetic import Float32Array
from services.transport.access.enforcement import confirm_caller
from services.transport.links import LinkClosed, run_until_first_ends

SERVE_SECONDS = 40.0
"""Longest check of one link, at its server. The client gives up before it."""
MAX_ROUNDS = 1000
"""Largest number of rounds of one check."""


async def serve_link_check(
    context: grpc.aio.ServicerContext[Any, Any],
    peer: str,
    *,
    shared_memory: bool,
    until: Coroutine[Any, Any, None],
) -> None:
    """Serve one stream of rounds until the client ends it.

    Args:
        context: the call, whose caller was checked.
        peer: role and name of the caller, for the log.
        shared_memory: whether payloads may go through memory shared with the caller.
        until: ends the stream with a LinkClosed when the check may not go on.
    """
    link: ServerTensorLink | None = None
    try:
        link = ServerTensorLink(peer, context.invocation_metadata(), enabled=shared_memory)
        confirm_caller(context)
        await context.send_initial_metadata(link.metadata)
        rounds = RoundStream(context, link)
        await run_until_first_ends(asyncio.wait_for(_serve_rounds(rounds), SERVE_SECONDS), until)
    except (ChunkRefused, WrongValues) as wrong:
        await context.abort(grpc.StatusCode.DATA_LOSS, str(wrong))
    except (Refused, ValueError) as refused:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, printable(str(refused)))
    except asyncio.TimeoutError:
        text = f"the check of this link took more than {SERVE_SECONDS:g} s"
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)
    except LinkClosed as closed:
        await context.abort(closed.code, str(closed))
    finally:
        until.close()
        if link is not None:
            link.close()


async def _serve_rounds(rounds: RoundStream) -> None:
    for _ in range(MAX_ROUNDS):
        link_round = await rounds.next_round()
        if link_round is None:
            return
        await _serve_round(rounds, link_round)
    raise Refused(f"a round after {MAX_ROUNDS}: expected no more; begin another check")


async def _serve_round(rounds: RoundStream, link_round: LinkRound) -> None:
    if link_round.add:
        sums: dict[int, Float32Array] = {}

        def add(chunk: TensorChunk) -> None:
            sums[chunk.header.index] = _add_own_values(chunk)

        await rounds.receive_values(link_round.up_elements, add)
        await rounds.send_values(link_round.down_elements, lambda index, _: sums[index])
    else:
        await rounds.receive_values(link_round.up_elements, partial(compare, client_values))
        await rounds.send_values(link_round.down_elements, server_values)
    await rounds.send_round(LinkRound(number=link_round.number))


def _add_own_values(chunk: TensorChunk) -> Float32Array:
    """Return the sum of a chunk and of this end's values, by the kernel that adds gradients."""
    summed = server_values(chunk.header.index, chunk.header.elements).copy()
    chunk.add_to(summed)
    hit_failpoint("link-check.summed", summed.data)
    return summed
