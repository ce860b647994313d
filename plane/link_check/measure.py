"""The client's end of a link check: sums, latency, and bandwidth in each direction, within limits of time and bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import grpc

from plane.link_check.rounds import (
    ELEMENT_BYTES,
    MAX_ELEMENTS,
    MAX_SHARED_ELEMENTS,
    RoundStream,
    WrongValues,
    client_values,
    compare,
    server_values,
    summed_values,
)
from plane.streams.data_streams import DataStreamConnector
from plane.streams.shared_memory_link import ClientTensorLink
from protos.checks_pb2 import LinkReport
from protos.tensors_pb2 import LinkRound
from services.errors import Refused
from services.printable import LINE_CHARACTERS, printable
from services.tensors.chunk_messages import ChunkRefused
from services.transport.http2.headers import Metadata
from services.transport.http2.stream import Stream
from services.transport.links import LinkClosed, raise_call_status

LINK_SECONDS = 30.0
"""Longest check of one link."""
MAX_LINK_BYTES = 4 * 2 * MAX_ELEMENTS * ELEMENT_BYTES
"""Payload after which no further round begins: 2 GiB."""

_FIRST_ELEMENTS = 1 << 14  # 64 KiB: half a second on a link of 1 Mbit/s
_GROWTH = 4
_WARM_SECONDS = 0.1
"""Duration of a round whose speed says how much to send in the rounds that count."""
_ROUND_SECONDS = 0.5
"""Duration that the rounds that count aim at."""
_MIN_ROUNDS, _MAX_ROUNDS = 3, 32
_ROUND_TRIPS = 20
_ROUND_TRIPS_SECONDS = 2.0

Clock = Callable[[], float]


@dataclass(frozen=True)
class LinkPeer:
    """The other end of a link, and how to open a stream to it.

    Attributes:
        label: role and name of the other end, for people.
        address: `HOST:PORT` of its main port.
        tensor_port: its tensor port; 0 if it has none.
        metadata: metadata by which it knows the caller.
    """

    label: str
    address: str
    tensor_port: int
    metadata: Metadata


async def check_link(
    connector: DataStreamConnector,
    peer: LinkPeer,
    *,
    shared_memory: bool,
    speed: bool = True,
    clock: Clock = time.perf_counter,
) -> LinkReport:
    """Return what the check of a link has found; it takes at most `LINK_SECONDS`.

    Args:
        connector: opens streams of the peer's method `MeasureLink`.
        peer: the other end.
        shared_memory: whether payloads may go through memory shared with the peer.
        speed: whether bandwidth is measured too, which takes seconds.
        clock: monotonic clock in seconds.
    """
    report = LinkReport()
    try:
        await asyncio.wait_for(_check(connector, peer, shared_memory, speed, clock, report), LINK_SECONDS)
    except (WrongValues, ChunkRefused) as wrong:
        report.wrong_bits, report.problem = True, str(wrong)
    except grpc.aio.AioRpcError as error:
        report.wrong_bits = error.code() is grpc.StatusCode.DATA_LOSS
        report.problem = _describe(error)
    except asyncio.TimeoutError:
        report.problem = f"not done within {LINK_SECONDS:g} s: it stalls, or carries less than 100 kbit/s"
    except (LinkClosed, Refused, ValueError, OSError) as error:
        report.problem = str(error)
    report.problem = printable(report.problem, LINE_CHARACTERS)
    return report


def _describe(error: grpc.aio.AioRpcError) -> str:
    return error.details() or str(error.code().name)


async def _check(
    connector: DataStreamConnector,
    peer: LinkPeer,
    shared_memory: bool,
    speed: bool,
    clock: Clock,
    report: LinkReport,
) -> None:
    link = ClientTensorLink(peer.label, enabled=shared_memory, count=lambda _: None)
    try:
        metadata = (*peer.metadata, *link.metadata)
        async with connector.open(peer.address, peer.tensor_port, metadata) as stream:
            report.main_port = peer.tensor_port > 0 and not isinstance(stream, Stream)
            await link.confirm(stream)
            report.shared_memory = link.shares
            meter = LinkMeter(stream, RoundStream(stream, link), link.shares, clock)
            await meter.measure(report)
            if speed:
                await meter.measure_speed(report)
    finally:
        link.close()


class LinkMeter:
    """Measures one open stream, and checks all that arrives on it.

    Args:
        stream: the call.
        rounds: rounds on that call.
        shares: whether payloads go through shared memory.
        clock: monotonic clock in seconds.
    """

    def __init__(self, stream: Any, rounds: RoundStream, shares: bool, clock: Clock) -> None:
        self._stream = stream
        self._rounds = rounds
        self._clock = clock
        self._max_elements = MAX_SHARED_ELEMENTS if shares else MAX_ELEMENTS
        self._number = 0
        self._sent_bytes = 0
        self._latency_seconds = 0.0

    async def measure(self, report: LinkReport) -> None:
        """Fill in a report whether values are right, and the latency.

        Raises:
            grpc.aio.AioRpcError, LinkClosed: the stream has ended.
            Refused: the peer has sent wrong values, or other messages than expected.
        """
        await self._round(up=_FIRST_ELEMENTS, down=_FIRST_ELEMENTS, add=True)
        report.latency_seconds = self._latency_seconds = await self._measure_latency()

    async def measure_speed(self, report: LinkReport) -> None:
        """Fill in the bandwidth, after `measure`, which says what is raised."""
        report.up_bytes_per_second = await self._measure_bandwidth(lambda elements: self._round(up=elements))
        report.down_bytes_per_second = await self._measure_bandwidth(
            lambda elements: self._round(down=elements)
        )

    async def _measure_latency(self) -> float:
        seconds: list[float] = []
        while len(seconds) < _ROUND_TRIPS and sum(seconds) < _ROUND_TRIPS_SECONDS:
            seconds.append(await self._round())
        return median(seconds)

    async def _measure_bandwidth(self, run: Callable[[int], Any]) -> float:
        """Return payload bytes per second: the median of some rounds that are as long as the link's speed asks for."""
        elements = _FIRST_ELEMENTS
        latency_seconds = self._latency_seconds
        while (seconds := await run(elements)) < _WARM_SECONDS + latency_seconds:
            if elements == self._max_elements:
                break
            elements = min(elements * _GROWTH, self._max_elements)
        wanted = elements * max(_ROUND_SECONDS, 2 * latency_seconds) / self._transfer_seconds(seconds)
        elements = int(min(max(wanted, _FIRST_ELEMENTS), self._max_elements))
        speeds: list[float] = []
        total_seconds = 0.0
        while len(speeds) < _MIN_ROUNDS or (
            total_seconds < _ROUND_SECONDS and len(speeds) < _MAX_ROUNDS and self._sent_bytes < MAX_LINK_BYTES
        ):
            seconds = await run(elements)
            total_seconds += seconds
            speeds.append(elements * ELEMENT_BYTES / self._transfer_seconds(seconds))
        return median(speeds)

    def _transfer_seconds(self, seconds: float) -> float:
        """Return the time of a round that bytes took: without its round trip, which takes at most half of it."""
        return max(seconds - self._latency_seconds, seconds / 2)

    async def _round(self, *, up: int = 0, down: int = 0, add: bool = False) -> float:
        """Run a round and return its duration in seconds."""
        self._number += 1
        self._sent_bytes += (up + down) * ELEMENT_BYTES
        began = self._clock()
        await self._rounds.send_round(
            LinkRound(number=self._number, up_elements=up, down_elements=down, add=add)
        )
        await self._rounds.send_values(up, client_values)
        await self._rounds.receive_values(down, partial(compare, summed_values if add else server_values))
        found = await self._rounds.next_round()
        if found is None:
            await raise_call_status(self._stream)
            raise LinkClosed("the peer ended the stream")
        if found.number != self._number:
            raise Refused(f"round {found.number}: expected the end of round {self._number}; upgrade the peer")
        return self._clock() - began
