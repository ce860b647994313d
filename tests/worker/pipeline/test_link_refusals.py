"""A worker refuses streams and arrays that are none of its row's, by name, and drops stale ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from protos import cluster_pb2 as pb
from protos.pipeline_pb2 import ACTIVATION_GRADIENT, TIED_PART, ArrayHeader, LanePosition, LinkState
from protos.tensors_pb2 import BFLOAT16, FLOAT32
from services.errors import Refused
from services.pipeline.exchange import ArraySizes
from services.pipeline.schedule import Pass
from services.pipeline.split import Split
from services.timeouts import STANDARD_TIMEOUTS, Timeouts
from services.transport.http2.client import ClientStream, open_stream
from services.transport.http2.frames import PREFACE, settings_frame
from services.transport.http2.messages import prefix
from services.transport.security import Security
from tests.support.linked_workers import EPOCH, JOB, LIMIT_SECONDS, LinkedWorker, make_lease
from tests.support.raw_http2 import data_frame, headers_frame, raw_peer, request
from tests.support.raw_http2 import message as framed
from worker.pipeline.array_plan import ArrayPlan
from worker.pipeline.link import MOST_REFUSALS
from worker.pipeline.messages import PIECE_BYTES, PassRefused, encode_piece, encode_state
from worker.pipeline.seats import RowPlaces
from worker.pipeline.streams import PASS_METHOD
from worker.row_exchange import NeighbourLost

ROW = EPOCH << 32 | 1
LEASE = make_lease()
PLAN = ArrayPlan(Split((1, 1)), "1f1b", ArraySizes(np.dtype(np.float32), 8, 8), FLOAT32)
VALUES = np.arange(8, dtype=np.float32)


@pytest.fixture
def timeouts() -> Timeouts:
    return STANDARD_TIMEOUTS


@pytest.fixture
def worker(timeouts: Timeouts) -> Iterator[LinkedWorker]:
    """Return a worker of the first stage; the test is that of the second one."""
    found = LinkedWorker("w0", timeouts, Security())
    row = pb.Row(job=JOB, row=ROW, seats=[found.seat(0, 1)])
    row.seats.add(name="w1", incarnation="the test", address="127.0.0.1:1", first_stage=1, stages=1)
    found.set_row(row)
    yield found
    found.stop()


def state(**changes: Any) -> bytes:
    fields = {"job": JOB, "row": ROW, "stage": 1, "name": "w1", "incarnation": "the test", **changes}
    return encode_state(LinkState(**fields))


def piece(content: Any = VALUES, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "job": JOB,
        "epoch": EPOCH,
        "generation": LEASE.generation,
        "step": LEASE.step,
        "lease": LEASE.lease,
        "row": ROW,
        "micro_batch": 5,
        "kind": ACTIVATION_GRADIENT,
        "shape": [2, 4],
        "dtype": FLOAT32,
        "number": 1,
        **changes,
    }
    return b"".join(encode_piece(ArrayHeader(**fields), memoryview(content).cast("B")))


async def end_of(stream: ClientStream) -> tuple[grpc.StatusCode, str]:
    """Return how a worker ends a stream."""
    try:
        while await stream.read() is not None:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code(), str(error.details())
    return grpc.StatusCode.OK, ""


def send(worker: LinkedWorker, *messages: bytes) -> tuple[grpc.StatusCode, str]:
    """Send messages on a stream of their own; return how the worker ends it."""

    async def run() -> tuple[grpc.StatusCode, str]:
        stream = await open_stream(f"127.0.0.1:{worker.port}", Security(), PASS_METHOD, ())
        try:
            for message in messages:
                await stream.write(message)
            return await asyncio.wait_for(end_of(stream), LIMIT_SECONDS)
        finally:
            stream.cancel()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("first", "code", "reason"),
    [
        (state(name="w9"), grpc.StatusCode.INVALID_ARGUMENT, "worker w9, .*expected worker w1 "),
        (state(incarnation="x"), grpc.StatusCode.INVALID_ARGUMENT, "worker w1, .*expected worker w1 "),
        (state(neighbour=1), grpc.StatusCode.INVALID_ARGUMENT, "stage 1 to 1 .*expected worker w1 "),
        (state(stage=0), grpc.StatusCode.INVALID_ARGUMENT, "worker w1, stage 0 .*no neighbour"),
        (state(stage=2), grpc.StatusCode.INVALID_ARGUMENT, "worker w1, stage 2 .*no neighbour"),
        (
            state(row=7),
            grpc.StatusCode.UNAVAILABLE,
            f"w0 has row 1 of epoch {EPOCH}, worker w1 wants row 7 of epoch 0",
        ),
        (state(job="x"), grpc.StatusCode.UNAVAILABLE, "wants row"),
        (piece(), grpc.StatusCode.INVALID_ARGUMENT, "first message of a stream: an array"),
        (state()[:-1], grpc.StatusCode.INVALID_ARGUMENT, "no PassMessage"),
        (state()[:-1] + b"x", grpc.StatusCode.INVALID_ARGUMENT, "state of a link: damaged"),
        (
            b"",
            grpc.StatusCode.INVALID_ARGUMENT,
            "expected a header with its payload or its place, or a state",
        ),
    ],
    ids=lambda value: "message" if isinstance(value, bytes) else None,
)
def test_streams_of_others_are_refused_by_name(
    worker: LinkedWorker, first: bytes, code: grpc.StatusCode, reason: str
) -> None:
    found, text = send(worker, first)
    assert found == code
    with pytest.raises(Refused, match=reason):
        raise Refused(text)


def test_a_second_worker_that_claims_a_stage_does_not_disturb_the_first(worker: LinkedWorker) -> None:
    async def run() -> None:
        stream = await open_stream(f"127.0.0.1:{worker.port}", Security(), PASS_METHOD, ())
        await stream.write(state())
        assert await stream.read() is not None
        code, text = await asyncio.get_running_loop().run_in_executor(
            None, send, worker, state(name="w2", incarnation="other")
        )
        assert code is grpc.StatusCode.INVALID_ARGUMENT and "w2" in text
        exchange = worker.links.open_lease(LEASE, PLAN)
        await stream.write(piece())
        received = asyncio.get_running_loop().run_in_executor(None, exchange.receive, Pass(True, 0, 5))
        np.testing.assert_array_equal(await received, VALUES.reshape(2, 4))
        stream.cancel()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (piece(dtype=BFLOAT16), "dtype BFLOAT16, expected FLOAT32 in this job"),
        (piece(dtype=77), "dtype 77, expected FLOAT32"),
        (piece(shape=[3, 4]), r"shape \[3, 4\] of 48 bytes, expected 1 to 32 bytes"),
        (piece(shape=[0, 4]), r"shape \[0, 4\] of 0 bytes"),
        (piece(shape=[]), r"shape \[\] of 4 bytes|bytes 0 to 32"),
        (piece(shape=[1] * 9), "ArrayHeader: shape: 9 elements, expected at most 8"),
        (piece(range=1), "range 1 .*expected a range of stage 0 of 2 ranges"),
        (piece(range=5), "range 5 .*expected a range of stage 0 of 2 ranges"),
        (piece(kind=9), "array of micro-batch 5 .*kind 9, expected one of 1, 2, 3"),
        (piece(kind=TIED_PART, shape=[9]), r"tied part .*shape \[9\]"),
        (piece(step=3), "generation 1 and step 3, expected 1 and 2, those of the lease"),
        (piece(generation=0), "generation 0 and step 2, expected 1 and 2"),
        (piece(number=2), "array 2 .*expected a part of array 1"),
        (piece(offset_bytes=4), "bytes 4 to 36, expected 0"),
        (
            piece(bytes(PIECE_BYTES + 1)),
            f"payload of {PIECE_BYTES + 1} bytes, expected at most {PIECE_BYTES}",
        ),
        (piece()[:-1] + b"x", "activation gradient of micro-batch 5 .*payload damaged"),
        (piece()[:20] + b"x" + piece()[21:], "piece of an array: damaged"),
    ],
    ids=lambda value: "message" if isinstance(value, bytes) else None,
)
def test_arrays_that_do_not_fit_are_refused_with_their_place(
    worker: LinkedWorker, message: bytes, reason: str
) -> None:
    worker.links.open_lease(LEASE, PLAN)
    code, text = send(worker, state(), message)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(Refused, match=reason):
        raise Refused(text)


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (LanePosition(kind=1, arrived=1), "expected at most 0"),
        (LanePosition(kind=1, taken=1), "expected at most 0"),
        (LanePosition(kind=7, arrived=1), "has arrived, but none was sent"),
    ],
)
def test_a_neighbour_that_claims_what_was_not_sent_is_refused(
    worker: LinkedWorker, position: LanePosition, reason: str
) -> None:
    worker.links.open_lease(LEASE, PLAN)
    code, text = send(worker, state(lanes=[position]))
    assert code is grpc.StatusCode.INVALID_ARGUMENT and reason in text


@pytest.mark.parametrize(
    "changes", [{"row": 7}, {"job": "x"}, {"epoch": EPOCH - 1}, {"lease": LEASE.lease - 1}]
)
def test_stale_arrays_are_dropped(worker: LinkedWorker, changes: dict[str, Any]) -> None:
    exchange = worker.links.open_lease(LEASE, PLAN)
    # A stale lease's array has a number of its own; what is of another row has none on this link.
    number = 2 if "lease" in changes else 1

    async def run() -> None:
        stream = await open_stream(f"127.0.0.1:{worker.port}", Security(), PASS_METHOD, ())
        for message in (state(), piece(-VALUES, **changes), piece(number=number)):
            await stream.write(message)
        received = asyncio.get_running_loop().run_in_executor(None, exchange.receive, Pass(True, 0, 5))
        np.testing.assert_array_equal(await received, VALUES.reshape(2, 4))
        stream.cancel()

    asyncio.run(run())


def test_a_neighbour_whose_arrays_are_refused_again_and_again_is_lost(worker: LinkedWorker) -> None:
    exchange = worker.links.open_lease(LEASE, PLAN)
    for _ in range(MOST_REFUSALS):
        send(worker, state(), piece(dtype=BFLOAT16))
    with pytest.raises(NeighbourLost, match=r"w1 \(stage 1\).*micro-batch 5 .*dtype BFLOAT16") as lost:
        exchange.receive(Pass(True, 0, 5))
    assert lost.value.neighbour == "w1"


def test_an_array_of_another_pass_is_not_taken_for_this_one(worker: LinkedWorker) -> None:
    exchange = worker.links.open_lease(LEASE, PLAN)

    async def run() -> None:
        stream = await open_stream(f"127.0.0.1:{worker.port}", Security(), PASS_METHOD, ())
        await stream.write(state())
        await stream.write(piece())
        received = asyncio.get_running_loop().run_in_executor(None, exchange.receive, Pass(True, 0, 4))
        with pytest.raises(
            NeighbourLost, match=r"micro-batch 5 .*for the pass of micro-batch 4 through range 0"
        ) as lost:
            await received
        assert lost.value.neighbour == "w1"
        stream.cancel()

    asyncio.run(run())


@pytest.mark.parametrize(
    "timeouts", [replace(Timeouts.from_heartbeat(0.1), silent=LIMIT_SECONDS)], ids=["not-silent"]
)
def test_a_message_whose_length_was_damaged_ends_its_stream(worker: LinkedWorker) -> None:
    """Signs of life go on, and would pass for more of the message for hours."""

    async def run() -> dict[str, str]:
        async with raw_peer(worker) as peer:

            async def live() -> None:
                while True:
                    peer.send(data_frame(framed(state())))
                    await asyncio.sleep(0.02)

            peer.send(PREFACE, settings_frame({}), headers_frame(request(PASS_METHOD)))
            peer.send(data_frame(framed(state())), data_frame(prefix(1 << 20)))
            living = asyncio.ensure_future(live())
            try:
                await peer.headers()
                return await asyncio.wait_for(peer.headers(), LIMIT_SECONDS)
            finally:
                living.cancel()

    trailers = asyncio.run(run())
    assert trailers["grpc-status"] == str(grpc.StatusCode.UNAVAILABLE.value[0])
    assert "a message without end" in trailers["grpc-message"]


@pytest.mark.parametrize(
    ("seats", "reason"),
    [
        ([("w0", 0, 1), ("w1", 2, 1)], "1 stages from 2 on for w1, expected 1 or more from 1 on"),
        (
            [("w0", 0, 1), ("w1", 0, 1)],
            "from 0 on for w1, expected 1 or more from 1 on, as each stage has one",
        ),
        ([("w0", 0, 0)], "0 stages from 0 on for w0"),
        ([("w1", 0, 1)], "0 seats for this worker, expected 1"),
        ([("w0", 0, 1), ("w0", 1, 1)], "2 seats for this worker, expected 1"),
    ],
)
def test_rows_without_one_worker_for_each_stage_are_refused(
    seats: list[tuple[str, int, int]], reason: str
) -> None:
    row = pb.Row(job=JOB, row=ROW)
    for name, first, stages in seats:
        row.seats.add(name=name, incarnation=name, address="127.0.0.1:1", first_stage=first, stages=stages)
    with pytest.raises(Refused, match=reason):
        RowPlaces.read(row, EPOCH, "w0")


def test_leases_of_a_row_must_follow_each_other(worker: LinkedWorker) -> None:
    worker.links.open_lease(make_lease(5), PLAN)
    for number in (4, 5):
        with pytest.raises(PassRefused, match="expected a larger number"):
            worker.links.open_lease(make_lease(number), PLAN)
    with pytest.raises(PassRefused, match="2 stages, expected 3"):
        worker.links.open_lease(make_lease(6), ArrayPlan(Split((1, 1, 1)), "1f1b", PLAN.sizes, FLOAT32))
