"""A check of a link on loopback: both paths of payloads, wrong values, damage, limits, and servers that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any

import grpc
import numpy as np
import pytest

from plane.link_check import measure, rounds
from plane.link_check.measure import LinkPeer, check_link
from plane.link_check.serve import serve_link_check
from plane.streams.data_streams import DataStreamConnector, write_message
from protos.checks_pb2 import LinkReport
from protos.tensors_pb2 import Chunk, LinkRound
from services.instrumentation import failpoints
from services.tensors.layout import CHUNK_ELEMENTS
from services.transport.http2.client import open_stream
from services.transport.http2.server import StreamServer
from services.transport.links import LinkClosed
from services.transport.security import Security

METHOD = "/tiermesh.Cluster/MeasureLink"
Handler = Callable[[Any], Awaitable[None]]


@pytest.fixture(autouse=True)
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep rounds to some chunks and milliseconds, however slow this machine is at the moment."""
    monkeypatch.setattr(measure, "LINK_SECONDS", 300.0)
    monkeypatch.setattr(measure, "MAX_ELEMENTS", 3 * CHUNK_ELEMENTS // 2)
    monkeypatch.setattr(measure, "MAX_SHARED_ELEMENTS", 3 * CHUNK_ELEMENTS // 2)
    monkeypatch.setattr(measure, "_ROUND_SECONDS", 0.005)


async def forever() -> None:
    await asyncio.Event().wait()


async def serve(stream: Any) -> None:
    await serve_link_check(stream, "worker w", shared_memory=True, until=forever())


def check(handler: Handler = serve, *, shared_memory: bool = False) -> LinkReport:
    async def run() -> LinkReport:
        server = await StreamServer.start("127.0.0.1:0", Security(), {METHOD: handler})
        try:
            peer = LinkPeer("aggregator a", "127.0.0.1:1", server.port, ())
            connector = DataStreamConnector(METHOD, Security())
            clock = partial(next, count(step=0.001))  # each round takes a millisecond
            return await check_link(connector, peer, shared_memory=shared_memory, clock=clock)
        finally:
            await server.stop(0)

    return asyncio.run(run())


@pytest.mark.parametrize("shared_memory", [False, True])
def test_a_link_that_works(shared_memory: bool) -> None:
    report = check(shared_memory=shared_memory)
    assert report.problem == ""
    assert (report.shared_memory, report.wrong_bits, report.main_port) == (shared_memory, False, False)
    assert report.latency_seconds == pytest.approx(0.001)
    assert min(report.up_bytes_per_second, report.down_bytes_per_second) > 1e6


@pytest.mark.parametrize("shared_memory", [False, True])
def test_a_sum_with_one_wrong_bit_is_named(shared_memory: bool) -> None:
    failpoints.arm({failpoints.VARIABLE: "link-check.summed=flip@1"})
    try:
        report = check(shared_memory=shared_memory)
    finally:
        failpoints.arm({})
    assert report.wrong_bits
    assert report.problem.startswith("1 of 16384 values of chunk 0 are wrong, first at 0: ")


def test_the_server_compares_what_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_is_wrong(index: int, elements: int) -> Any:
        values = rounds.client_values(index, elements).copy()
        if index == 1:
            values[-1] = np.nextafter(values[-1], np.float32(np.inf))
        return values

    monkeypatch.setattr(measure, "client_values", last_is_wrong)
    report = check()
    assert report.wrong_bits
    assert "1 of 262144 values of chunk 1 are wrong, first at 262143" in report.problem
    assert report.latency_seconds > 0, "what was measured before stays"


def test_values_differ_from_chunk_to_chunk_and_sums_are_exact() -> None:
    first, second = rounds.client_values(0, CHUNK_ELEMENTS), rounds.client_values(1, CHUNK_ELEMENTS)
    assert np.count_nonzero(first == second) < 10
    exact = first.astype(np.float64) + rounds.server_values(0, CHUNK_ELEMENTS)
    assert np.array_equal(rounds.summed_values(0, CHUNK_ELEMENTS), exact)


@pytest.mark.parametrize(
    ("link_round", "expected"),
    [
        (LinkRound(number=1, up_elements=rounds.MAX_ELEMENTS + 1), "expected at most"),
        (LinkRound(number=1, down_elements=2**32 - 1), "expected at most"),
        (LinkRound(number=1, up_elements=5, down_elements=6, add=True), "expected the same number"),
        (LinkRound(number=1, up_elements=2**20, down_elements=2**20, add=True), "expected the same number"),
        (None, "expected the beginning or the end of a round"),
    ],
)
def test_rounds_that_are_refused(link_round: LinkRound | None, expected: str) -> None:
    async def run() -> None:
        server = await StreamServer.start("127.0.0.1:0", Security(), {METHOD: serve})
        try:
            stream = await open_stream(f"127.0.0.1:{server.port}", Security(), METHOD)
            content = Chunk(round=link_round).SerializeToString() if link_round is not None else b"\x0a\x00"
            await write_message(stream, content)
            assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert expected in await stream.details()
            stream.cancel()
        finally:
            await server.stop(0)

    asyncio.run(run())


async def _silent(stream: Any) -> None:
    await stream.send_initial_metadata(())
    await forever()


async def _ends(stream: Any) -> None:
    await stream.send_initial_metadata(())
    await stream.read()


async def _answers_another_round(stream: Any) -> None:
    await stream.send_initial_metadata(())
    found = rounds.RoundStream(stream, None)
    await stream.read()
    await found.send_round(LinkRound(number=77))
    await forever()


def test_a_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "LINK_SECONDS", 0.5)
    report = check(_silent)
    assert "not done within 0.5 s" in report.problem
    assert report.up_bytes_per_second == 0


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (_ends, "the peer ended the stream"),
        (_answers_another_round, "is no Chunk|not a Chunk|crc32c|chunk 0"),
    ],
)
def test_servers_that_misbehave(handler: Handler, expected: str) -> None:
    report = check(handler)
    assert any(each in report.problem for each in expected.split("|")), report.problem
    assert report.up_bytes_per_second == 0


def test_the_end_of_the_check_ends_the_stream() -> None:
    async def over() -> None:
        raise LinkClosed("the check is over")

    async def handler(stream: Any) -> None:
        await serve_link_check(stream, "worker w", shared_memory=False, until=over())

    assert "the check is over" in check(handler).problem


class _Rounds(measure.LinkMeter):
    """A meter on a link that exists on paper only: `speed` bytes per second, and a latency."""

    def __init__(self, speed: float, latency_seconds: float) -> None:
        super().__init__(None, None, False, lambda: 0.0)
        self._speed, self._latency = speed, latency_seconds
        self.largest = self.count = 0

    async def _round(self, *, up: int = 0, down: int = 0, add: bool = False) -> float:
        size = (up + down) * rounds.ELEMENT_BYTES
        self._sent_bytes += size
        self.largest, self.count = max(self.largest, size), self.count + 1
        return self._latency + size / self._speed


@pytest.mark.parametrize("speed", [2e4, 1e6, 1.25e8, 1e12])
@pytest.mark.parametrize("latency_seconds", [1e-4, 0.2])
def test_amounts_adapt_to_the_link(
    speed: float, latency_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    meter, report = _Rounds(speed, latency_seconds), LinkReport()

    async def measure_all() -> None:
        await meter.measure(report)
        await meter.measure_speed(report)

    asyncio.run(measure_all())
    assert report.latency_seconds == pytest.approx(latency_seconds)
    if latency_seconds < 1e-3 or speed < 1e9:
        assert report.up_bytes_per_second == pytest.approx(speed, rel=0.01)
        assert report.down_bytes_per_second == pytest.approx(speed, rel=0.01)
    assert meter.largest <= rounds.MAX_ELEMENTS * rounds.ELEMENT_BYTES
    assert meter.count < 120
    assert meter._sent_bytes <= measure.MAX_LINK_BYTES + 8 * meter.largest


def test_a_peer_that_can_not_be_reached() -> None:
    async def run() -> LinkReport:
        connector = DataStreamConnector(METHOD, Security(), connect_seconds=0.2)
        return await check_link(connector, LinkPeer("shard 0", "127.0.0.1:1", 1, ()), shared_memory=False)

    report = asyncio.run(run())
    assert "127.0.0.1:1" in report.problem
