"""Links between the workers of a row deliver each array once, whatever happens to their streams."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from plane.streams.shared_memory_link import TensorLink
from protos.tensors_pb2 import FLOAT32
from services.pipeline.exchange import ArraySizes
from services.pipeline.schedule import Pass
from services.pipeline.split import Split
from services.timeouts import STANDARD_TIMEOUTS, Timeouts
from services.transport.access.permissions import CallerKind
from services.transport.http2.server import Handler
from services.transport.security import Security
from tests.support.certificates import make_authority, make_certificate
from tests.support.faulty_links import Direction, MessageFault, MessageFaults, cutting_relay
from tests.support.linked_workers import (
    LIMIT_SECONDS,
    LinkedWorker,
    form_row,
    linked_workers,
    make_lease,
    quick_streams,
)
from worker.pipeline import shared_arrays
from worker.pipeline.array_plan import ArrayPlan
from worker.pipeline.lease_exchange import LeaseExchange
from worker.row_exchange import LeaseDropped, NeighbourLost

ELEMENTS = 1_100_000  # three pieces
TIED_ELEMENTS = 600_000  # two pieces
PIECE = 500_000  # elements of one piece
PLAN = ArrayPlan(Split((1, 1)), "1f1b", ArraySizes(np.dtype(np.float32), ELEMENTS, TIED_ELEMENTS), FLOAT32)
COUNT = 3
QUICK_STREAMS = (quick_streams(0.4),) * 2


def draw(kind: int, number: int, elements: int = ELEMENTS) -> Any:
    return np.arange(elements, dtype=np.float32).reshape(2, -1) * (1 + 100 * kind + number)


def run_first(exchange: LeaseExchange, lease: int) -> None:
    """Send activations, and take gradients and tied parts, as the first stage does."""
    for index in range(COUNT + 1):
        if index < COUNT:
            exchange.send(Pass(False, 1, index), draw(lease, index))
        if index:
            found = exchange.receive(Pass(True, 0, index - 1))
            np.testing.assert_array_equal(found, draw(lease + 1, index - 1))
            tied = exchange.receive_tied(index - 1)
            np.testing.assert_array_equal(tied, draw(lease + 2, index - 1, TIED_ELEMENTS))


def run_last(exchange: LeaseExchange, lease: int) -> None:
    """Take activations, and send gradients and tied parts, as the last stage does."""
    for index in range(COUNT):
        np.testing.assert_array_equal(exchange.receive(Pass(False, 1, index)), draw(lease, index))
        exchange.send(Pass(True, 0, index), draw(lease + 1, index))
        exchange.send_tied(index, draw(lease + 2, index, TIED_ELEMENTS))


@contextmanager
def threads() -> Iterator[Callable[..., Future[Any]]]:
    """Run functions on threads that end with the block."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


def exchange_leases(workers: list[LinkedWorker], leases: int = 2) -> None:
    """Exchange the arrays of some leases between two workers."""

    def run(worker: LinkedWorker, passes: Callable[[LeaseExchange, int], None]) -> None:
        for number in range(1, leases + 1):
            exchange = worker.links.open_lease(make_lease(number), PLAN)
            passes(exchange, 10 * number)
            exchange.close()

    with threads() as submit:
        results = [submit(run, workers[0], run_first), submit(run, workers[1], run_last)]
        try:
            for result in results:
                result.result(LIMIT_SECONDS)
        finally:
            for worker in workers:
                worker.set_row(None)  # a thread that waits ends


QUICK = {("lost", "up"), ("bit-flipped", "up"), ("reordered", "down"), ("cut", "down")}
"""Faults that `make test` runs; `make test-all` adds the others."""


@pytest.mark.parametrize(
    ("kind", "direction"),
    [
        pytest.param(kind, direction, marks=() if (kind, direction) in QUICK else pytest.mark.long)
        for kind in ("duplicated", "reordered", "lost", "truncated", "bit-flipped", "cut")
        for direction in ("up", "down")
    ],
)
def test_arrays_survive_a_fault_of_a_message(kind: MessageFault, direction: Direction) -> None:
    faults = MessageFaults(kind, direction, 5)
    with linked_workers((1, 1), wrap=faults.wrap) as workers:
        exchange_leases(workers)
    assert faults.happened.is_set()


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_lost_piece_that_no_other_follows_is_noticed_by_a_sign_of_life(direction: Direction) -> None:
    faults = MessageFaults("lost", direction, 2)  # the last one of the first array
    to_first = direction == "up"
    with linked_workers((1, 1), timeouts=QUICK_STREAMS, wrap=faults.wrap) as workers, threads() as submit:
        first, last = (each.links.open_lease(make_lease(), PLAN) for each in workers)
        sender, receiver, one = (
            (last, first, Pass(True, 0, 0)) if to_first else (first, last, Pass(False, 1, 0))
        )
        sender.send(one, draw(0, 0))
        found = submit(receiver.receive, one).result(LIMIT_SECONDS)
        np.testing.assert_array_equal(found, draw(0, 0))
    assert faults.happened.is_set()


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)]
)
def test_arrays_survive_connections_that_break_and_damage_amid_them(seed: int) -> None:
    places = np.random.default_rng(seed).integers(1, 8_000_000, 4)
    cuts = [("flip" if index == 2 else "close", int(place)) for index, place in enumerate(places)]
    ports: list[int] = []
    with (
        cutting_relay(lambda: ports[0] if ports else 0, cuts, seed) as port,
        linked_workers((1, 1), address_of=lambda worker: f"127.0.0.1:{port}") as workers,
    ):
        ports.append(workers[0].port)
        exchange_leases(workers)


def test_arrays_survive_a_connection_that_stalls() -> None:
    ports: list[int] = []
    with (
        cutting_relay(lambda: ports[0] if ports else 0, [("stall", 5_000_000)], 0) as port,
        linked_workers(
            (1, 1), timeouts=QUICK_STREAMS, address_of=lambda worker: f"127.0.0.1:{port}"
        ) as workers,
    ):
        ports.append(workers[0].port)
        exchange_leases(workers)


def test_a_link_that_is_slow_is_not_silent() -> None:
    """Check that an array comes on one stream. A piece of it takes 0.7 s, and silence of 0.5 s ends a stream.

    The time is that of the link: it stands still while no bytes pass because this machine is busy.
    """
    ports: list[int] = []
    connections: list[None] = []
    passed: list[int] = []
    speed = 3e6
    slow: Any = {
        "bytes_per_second": speed,
        "count": lambda: connections.append(None),
        "count_bytes": passed.append,
    }
    timeouts = replace(Timeouts.from_heartbeat(0.2), hello=LIMIT_SECONDS)
    with (
        threads() as submit,
        cutting_relay(lambda: ports[0] if ports else 0, (), 0, **slow) as port,
        linked_workers(
            (1, 1),
            timeouts=[timeouts] * 2,
            address_of=lambda worker: f"127.0.0.1:{port}",
            clock=lambda: sum(passed) / speed,
        ) as workers,
    ):
        ports.append(workers[0].port)
        first, last = (each.links.open_lease(make_lease(), PLAN) for each in workers)
        first.send(Pass(False, 1, 0), draw(0, 0, PIECE))
        found = submit(last.receive, Pass(False, 1, 0)).result(LIMIT_SECONDS / 4)
        np.testing.assert_array_equal(found, draw(0, 0, PIECE))
    assert len(connections) == 1


def longest_message(sizes: list[int]) -> Callable[[Handler], Handler]:
    """Return a wrapper of handlers that notes the longest message that a worker receives."""

    def wrap(handler: Handler) -> Handler:
        async def serve(stream: Any) -> None:
            read = stream.read

            async def note() -> Any:
                message = await read()
                sizes.append(0 if message is None else len(message))
                return message

            stream.read = note
            await handler(stream)

        return serve

    return wrap


def test_arrays_go_through_memory_of_one_host() -> None:
    sizes: list[int] = []
    with linked_workers((1, 1), shares=True, wrap=longest_message(sizes)) as workers:
        exchange_leases(workers, leases=3)
        assert [each.shared_links for each in workers] == [1, 1]
    assert max(sizes) < 1000


def test_arrays_in_memory_survive_connections_that_break() -> None:
    cuts = [("close", 1500), ("close", 1000)]
    ports: list[int] = []
    with (
        cutting_relay(lambda: ports[0] if ports else 0, cuts, 1) as port,
        linked_workers(
            (1, 1), shares=True, timeouts=QUICK_STREAMS, address_of=lambda worker: f"127.0.0.1:{port}"
        ) as workers,
    ):
        ports.append(workers[0].port)
        exchange_leases(workers)
        assert min(each.shared_links for each in workers) > 1


@pytest.mark.parametrize("direction", ["up", "down"])
def test_arrays_in_memory_survive_damage_of_what_refers_to_them(direction: Direction) -> None:
    faults = MessageFaults("bit-flipped", direction, 2)
    with linked_workers((1, 1), shares=True, timeouts=QUICK_STREAMS, wrap=faults.wrap) as workers:
        exchange_leases(workers)
        assert min(each.shared_links for each in workers) > 1
    assert faults.happened.is_set()


@pytest.mark.parametrize("reason", ["unreadable", "too large"])
def test_arrays_go_over_the_wire_where_memory_can_not_be_shared(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason == "unreadable":
        monkeypatch.setattr(TensorLink, "find_array", lambda *given: None)
    else:
        monkeypatch.setattr(shared_arrays, "MOST_BYTES", 1000)
    sizes: list[int] = []
    with linked_workers((1, 1), shares=True, wrap=longest_message(sizes)) as workers:
        exchange_leases(workers)
    assert max(sizes) > 1_000_000


def test_a_neighbour_that_is_gone_is_named_within_the_timeouts() -> None:
    timeouts = [Timeouts.from_heartbeat(0.1), STANDARD_TIMEOUTS, STANDARD_TIMEOUTS]
    with linked_workers((1, 1, 1), timeouts=timeouts) as workers, threads() as submit:
        plan = ArrayPlan(Split((1, 1, 1)), "1f1b", PLAN.sizes, FLOAT32)
        first, middle, _ = (each.links.open_lease(make_lease(), plan) for each in workers)
        middle.send(Pass(False, 2, 0), draw(0, 0))
        waits = submit(first.receive, Pass(True, 0, 0))
        workers[1].stop()
        with pytest.raises(NeighbourLost, match=r"127\.0\.0\.1:.*not heard for") as lost:
            waits.result(LIMIT_SECONDS)
        assert lost.value.neighbour == "w1"


@pytest.mark.parametrize("waits_for", ["credit", "array", "tied part"])
@pytest.mark.parametrize("end", ["drop", "row"])
def test_a_dropped_lease_ends_what_waits(waits_for: str, end: str) -> None:
    with linked_workers((1, 1)) as workers, threads() as submit:
        exchange = workers[0].links.open_lease(make_lease(), PLAN)

        def send() -> None:
            for index in range(100):
                exchange.send(Pass(False, 1, index), draw(0, index, 10))

        calls: dict[str, Callable[[], Any]] = {
            "credit": send,
            "array": lambda: exchange.receive(Pass(True, 0, 0)),
            "tied part": lambda: exchange.receive_tied(0),
        }
        waits = submit(calls[waits_for])
        with pytest.raises(TimeoutError):
            waits.result(0.05)
        if end == "drop":
            exchange.drop()
        else:
            workers[0].set_row(None)
        with pytest.raises(LeaseDropped):
            waits.result(LIMIT_SECONDS)


def test_leases_after_one_that_both_ends_dropped_have_all_credits() -> None:
    with linked_workers((1, 1)) as workers:
        for number in range(1, 4):
            first, last = (each.links.open_lease(make_lease(number), PLAN) for each in workers)
            first.send(Pass(False, 1, 0), draw(number, 0))
            first.drop()
            last.drop()
    with linked_workers((1, 1)) as workers:
        for number in range(1, 4):
            dropped = workers[0].links.open_lease(make_lease(number), PLAN)
            dropped.send(
                Pass(False, 1, 0), draw(number, 0)
            )  # the neighbour has not opened it, and never does
            dropped.drop()
        first, last = (each.links.open_lease(make_lease(9), PLAN) for each in workers)
        for index in range(2):
            first.send(Pass(False, 1, index), draw(9, index))
        for index in range(2):
            np.testing.assert_array_equal(last.receive(Pass(False, 1, index)), draw(9, index))


def test_a_lease_that_the_neighbour_has_left_behind_is_dropped() -> None:
    with linked_workers((1, 1)) as workers, threads() as submit:
        last = workers[1].links.open_lease(make_lease(1), PLAN)
        waits = submit(last.receive, Pass(False, 1, 0))
        first = workers[0].links.open_lease(make_lease(2), PLAN)
        first.send(Pass(False, 1, 0), draw(0, 0))
        with pytest.raises(LeaseDropped, match="gone on to a later one"):
            waits.result(LIMIT_SECONDS)


def test_a_sender_waits_for_nothing_but_credits() -> None:
    gate = threading.Event()

    def wrap(handler: Handler) -> Handler:
        async def serve(stream: Any) -> None:
            if not gate.is_set():
                await stream.abort(grpc.StatusCode.UNAVAILABLE, "no stream is accepted yet")
            await handler(stream)

        return serve

    with linked_workers((1, 1), wrap=wrap) as workers, threads() as submit:
        first, last = (each.links.open_lease(make_lease(), PLAN) for each in workers)
        for index in range(2):  # as many as there are credits, although nothing can be sent
            first.send(Pass(False, 1, index), draw(0, index))
        waits = submit(first.send, Pass(False, 1, 2), draw(0, 2))
        with pytest.raises(TimeoutError):
            waits.result(0.05)
        gate.set()
        for index in range(3):
            np.testing.assert_array_equal(last.receive(Pass(False, 1, index)), draw(0, index))
        waits.result(LIMIT_SECONDS)


def test_a_new_row_begins_with_new_links() -> None:
    with linked_workers((1, 1)) as workers:
        exchange_leases(workers, leases=1)
        row = form_row(workers, (1, 1), number=2)
        for worker in workers:
            worker.set_row(row)
        with pytest.raises(LeaseDropped, match=r"its row .* is over"):
            workers[0].links.open_lease(make_lease(1, row=1), PLAN)
        first, last = (each.links.open_lease(make_lease(1, row=2), PLAN) for each in workers)
        first.send(Pass(False, 1, 0), draw(0, 0))
        np.testing.assert_array_equal(last.receive(Pass(False, 1, 0)), draw(0, 0))


def test_links_have_tls(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    security = [
        Security(*make_certificate(tmp_path, f"w{index}", authority, CallerKind.WORKER), authority)
        for index in range(2)
    ]
    with linked_workers((1, 1), security=security) as workers:
        exchange_leases(workers)


@pytest.mark.parametrize(
    ("kind", "bound_names", "reason"),
    [
        (CallerKind.AGGREGATOR, (), "not allowed for aggregator"),
        (CallerKind.WORKER, ("another",), "bound to another"),
    ],
)
def test_a_caller_that_is_no_such_worker_is_refused(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: CallerKind,
    bound_names: tuple[str, ...],
    reason: str,
) -> None:
    authority = make_authority(tmp_path, "authority")
    security = [
        Security(*make_certificate(tmp_path, "w0", authority, CallerKind.WORKER), authority),
        Security(*make_certificate(tmp_path, "w1", authority, kind, bound_names=bound_names), authority),
    ]
    caplog.set_level(logging.INFO, "tiermesh.worker")
    timeouts = replace(Timeouts.from_heartbeat(0.3), hello=LIMIT_SECONDS)

    def read_clock() -> float:
        """Return the time, which begins when the refusal is known."""
        return time.monotonic() if reason in caplog.text else 0.0

    with linked_workers((1, 1), security=security, timeouts=[timeouts] * 2, clock=read_clock) as workers:
        last = workers[1].links.open_lease(make_lease(), PLAN)
        with pytest.raises(NeighbourLost, match=reason):
            last.receive(Pass(False, 1, 0))
