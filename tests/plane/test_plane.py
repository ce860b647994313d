"""A plane: its orders run in sequence on threads of their own, and the payloads that wait for them are bounded."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from plane.errors import NotStored
from plane.plane import Plane, PlaneOwner
from plane.waiting_payloads import MAX_WAITING_CHUNKS
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from protos.cluster_pb2 import LayoutPart
from protos.tensors_pb2 import BFLOAT16, FLOAT32, ChunkHeader
from services.config.load import load_job
from services.errors import Failed, Refused
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.tensors.chunk_messages import TensorChunk
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout
from services.tensors.stripes import Stripe
from services.transport.access.enforcement import Caller, Denied
from services.transport.access.permissions import CallerKind
from services.transport.links import INCARNATION_KEY
from tests.plane.test_sums import ELEMENTS, in_place, received
from tests.support.cluster.bits import sized_config, write_config
from tests.support.plane_threads import block, join_threads, wait_for_threads

LIMIT_SECONDS = 30
SESSION = 1
JOB = "j"
LAYOUT = Layout.build([("w", (8, 4), True, "w", False)])
ROOT = pb.SumNode(first=0, count=4)


@pytest.fixture(autouse=True)
def _chunks_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the payloads of these tests count as whole chunks."""
    monkeypatch.setattr("plane.waiting_payloads.CHUNK_ELEMENTS", ELEMENTS)


class PlaneDialogue:
    """A plane whose tensors are in another process; its finished sums and errors come here.

    Args:
        wait_to_send: see `PlaneOwner`.
        sends_sums: whether its finished sums come here; they are kept else, to be staged.

    Attributes:
        reports: reports of the plane.
        finished: first value of each finished sum, in order.
        threads: ids of the threads that finished sums.
        failed: errors that the plane has called `fail` with.
        on_finished: called on the thread of sums for each finished sum.
        on_open: called on the allocating thread when an OpenPart needs the layout.
        layout_of: returns the layout of a job.
    """

    def __init__(
        self, wait_to_send: Callable[[], Awaitable[None]] | None = None, *, sends_sums: bool = True
    ) -> None:
        self.reports: list[Message] = []
        self.finished: list[float] = []
        self.threads: set[int] = set()
        self.failed: asyncio.Queue[Exception] = asyncio.Queue()
        self.on_finished: Callable[[], None] = lambda: None
        self.on_open: Callable[[], object] = lambda: None
        self.layout_of: Callable[[str], Layout] = lambda job: LAYOUT
        owner = PlaneOwner(
            report=self.reports.append,
            fail=self.failed.put_nowait,
            read_layout=self._read_layout,
            fill=lambda order, tensors: None,
            copied=lambda order, arrays: self.reports.append(pb.CopiedPart(job=order.job, copy=order.copy)),
            drop_copy=lambda order: None,
            send_sum=self._send_sum if sends_sums else None,
            wait_to_send=wait_to_send,
        )
        self.plane = Plane(
            owner,
            epoch=1,
            stripe=Stripe(0, 1),
            incarnation="s",
            metrics=AggregatorMetrics(),
            update_metrics=None,
            shared_memory=False,
        )
        self._arrivals = 0
        self.plane.carry_out([pb.WorkerAttends(session=SESSION, incarnation="i", name="w")])
        self.pass_job(JOB)

    def pass_job(self, job: str) -> None:
        """Let a job's payloads pass through the plane."""
        self.plane.carry_out([pb.PassJob(job=job, elements=LAYOUT.elements)])

    def _send_sum(self, header: ChunkHeader, values: Float32Array) -> None:
        self.finished.append(float(values[0]))
        self.threads.add(threading.get_ident())
        self.on_finished()

    def _read_layout(self, order: pb.OpenPart) -> Layout:
        self.on_open()
        return self.layout_of(order.job)

    def arrive(self, piece: TensorChunk, session: int = SESSION) -> int:
        """Let a worker's data stream bring a piece; return its arrival."""
        piece.header.job = JOB
        self.plane._piece_arrived(session, piece)
        self._arrivals += 1
        return self._arrivals

    def block_sums(self) -> threading.Event:
        """Keep the thread of sums busy until the event is set."""
        return block(self.plane._sums_thread)

    async def wait_for_threads(self) -> None:
        """Wait for all work that the plane's threads have by now, and for their calls on the event loop."""
        await wait_for_threads(self.plane)

    def join_threads(self) -> None:
        """Wait for the end of the threads of a plane that is closed."""
        join_threads(self.plane)

    async def room(self, session: int = SESSION) -> asyncio.Future[None]:
        """Return a wait for room that has had the time to find some."""
        room = asyncio.ensure_future(self.plane.wait_for_room(JOB, session))
        for _ in range(10):
            await asyncio.sleep(0)
        return room


def with_plane(
    scenario: Callable[[PlaneDialogue], Awaitable[None]],
    wait_to_send: Callable[[], Awaitable[None]] | None = None,
) -> None:
    async def run() -> None:
        dialogue = PlaneDialogue(wait_to_send)
        try:
            await scenario(dialogue)
        finally:
            dialogue.plane.close("over")

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


def finish(arrival: int, job: str = JOB) -> list[Message]:
    """Return the orders that make an arrived chunk a finished sum."""
    return [
        pb.KeepPieces(job=job, arrivals=[arrival]),
        pb.KeepSum(chunks=[0], job=job, node=ROOT),
        pb.FinishSum(chunks=[0], job=job, node=ROOT),
    ]


def first_value(seed: int) -> float:
    """Return the first value of the chunk that `received` and `in_place` make of a seed."""
    return float(received(FLOAT32, seed).values()[0])


# ---- the sequence of orders ----


def test_orders_are_carried_out_in_order_on_a_thread_of_their_own() -> None:
    async def scenario(dialogue: PlaneDialogue) -> None:
        for seed in range(3):
            dialogue.plane.carry_out(finish(dialogue.arrive(received(FLOAT32, seed))))
        await dialogue.wait_for_threads()
        assert dialogue.finished == [first_value(seed) for seed in range(3)]
        assert threading.get_ident() not in dialogue.threads
        assert dialogue.failed.empty()

    with_plane(scenario)


@pytest.mark.parametrize(
    ("order", "error"),
    [
        pytest.param(pb.FinishSum(chunks=[0], job=JOB, node=ROOT), NotStored, id="a sum that is not here"),
        pytest.param(pb.KeepPieces(job=JOB, arrivals=[7]), Refused, id="a payload that has not come"),
        pytest.param(
            pb.DiscardPieces(job=JOB, arrivals=[7]), Refused, id="a payload that has not come, discarded"
        ),
        pytest.param(pb.SendVersion(session=SESSION, parts=[LayoutPart()]), Refused, id="parts of no layout"),
    ],
)
def test_nothing_is_carried_out_after_an_order_that_can_not_be(
    order: Message, error: type[Exception]
) -> None:
    async def scenario(dialogue: PlaneDialogue) -> None:
        first, second, third = (dialogue.arrive(received(FLOAT32, seed)) for seed in range(3))
        dialogue.plane.carry_out(finish(first))
        dialogue.plane.carry_out([order, *finish(second)])
        dialogue.plane.carry_out(finish(third))
        assert isinstance(await dialogue.failed.get(), error)
        await dialogue.wait_for_threads()
        assert dialogue.finished in ([], [first_value(0)]), "an order before it may have come too late"
        assert dialogue.failed.empty(), "it fails once"

    with_plane(scenario)


def test_orders_before_one_that_fails_on_a_thread_are_carried_out() -> None:
    async def scenario(dialogue: PlaneDialogue) -> None:
        first, second = (dialogue.arrive(received(FLOAT32, seed)) for seed in range(2))
        dialogue.plane.carry_out(
            [*finish(first), pb.DropSum(chunks=[0], job=JOB, node=ROOT), *finish(second)]
        )
        assert isinstance(await dialogue.failed.get(), NotStored)
        await dialogue.wait_for_threads()
        assert dialogue.finished == [first_value(0)]

    with_plane(scenario)


def test_a_closed_plane_carries_out_nothing_and_does_not_fail() -> None:
    async def scenario(dialogue: PlaneDialogue) -> None:
        sums_may_run = dialogue.block_sums()
        arrival = dialogue.arrive(received(FLOAT32, 0))
        dialogue.plane.carry_out(finish(arrival))
        dialogue.plane.close("over")
        dialogue.plane.carry_out([pb.KeepPieces(job=JOB, arrivals=[arrival])])
        sums_may_run.set()
        await asyncio.to_thread(dialogue.join_threads)
        await asyncio.sleep(0)
        assert not dialogue.finished
        assert dialogue.failed.empty()

    with_plane(scenario)


@pytest.mark.parametrize("part", ["a sum", "tensors"])
def test_a_plane_that_is_closed_during_an_order_says_nothing_of_it(
    part: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, _ = load_job(write_config(tmp_path, sized_config(8, 4)), [])
    begun, may_end = threading.Event(), threading.Event()
    kept: list[PlaneDialogue] = []

    def wait_until_closed() -> None:
        begun.set()
        assert may_end.wait(LIMIT_SECONDS)

    def fail_late() -> None:
        wait_until_closed()
        raise Failed("too late")

    async def scenario(dialogue: PlaneDialogue) -> None:
        kept.append(dialogue)
        dialogue.on_finished, dialogue.on_open = fail_late, wait_until_closed
        orders = finish(dialogue.arrive(received(FLOAT32, 0)))
        if part == "tensors":
            orders = [pb.OpenPart(job="j", spec_json=config.to_json())]
        dialogue.plane.carry_out(orders)
        await asyncio.to_thread(begun.wait, LIMIT_SECONDS)
        dialogue.reports.clear()

    with_plane(scenario)
    may_end.set()  # the event loop is closed
    kept[0].join_threads()
    assert (kept[0].reports, kept[0].failed.empty()) == ([], True)
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []


# ---- payloads that wait ----


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "discarded"])
def test_payloads_count_until_they_are_discarded_or_kept(kept: bool) -> None:
    async def scenario(dialogue: PlaneDialogue) -> None:
        sums_may_run = dialogue.block_sums()
        arrivals: list[int] = []
        for seed in range(MAX_WAITING_CHUNKS):
            await dialogue.plane.wait_for_room(JOB, SESSION)
            arrivals.append(dialogue.arrive(received(FLOAT32, seed)))
            if kept:
                dialogue.plane.carry_out([pb.KeepPieces(job=JOB, arrivals=[arrivals[-1]])])
        rooms = [await dialogue.room() for _ in range(3)]
        assert not any(room.done() for room in rooms), "they take memory, whether decided on or not"
        if kept:
            sums_may_run.set()
        else:
            dialogue.plane.carry_out([pb.DiscardPieces(job=JOB, arrivals=[each]) for each in arrivals])
        await asyncio.gather(*rooms)
        sums_may_run.set()

    with_plane(scenario)


def test_payloads_in_a_workers_shared_memory_do_not_count() -> None:
    async def scenario(dialogue: PlaneDialogue) -> None:
        sums_may_run = dialogue.block_sums()
        for seed in range(MAX_WAITING_CHUNKS - 1):
            dialogue.arrive(received(FLOAT32, seed))
        for seed, keep in enumerate([True, False, False] * MAX_WAITING_CHUNKS):
            arrival = dialogue.arrive(in_place(FLOAT32, seed))
            decide = pb.KeepPieces if keep else pb.DiscardPieces
            dialogue.plane.carry_out([decide(job=JOB, arrivals=[arrival])])
            await asyncio.sleep(0)
            arrived = dialogue.reports[-1]
            assert isinstance(arrived, pb.ArrivedPieces) and arrived.in_place
        assert (await dialogue.room()).done(), "those of a message leave room for one more"
        dialogue.arrive(received(FLOAT32, 0))
        sums_may_run.set()
        await dialogue.wait_for_threads()
        assert not (await dialogue.room()).done(), "those in shared memory have given none back either"

    with_plane(scenario)


def test_payloads_wait_until_few_sums_are_on_their_way_to_another_process() -> None:
    async def scenario(dialogue: PlaneDialogue) -> None:
        room = await dialogue.room()
        assert not room.done()
        may_send.set()
        await room

    may_send = asyncio.Event()

    async def wait_to_send() -> None:
        await may_send.wait()

    with_plane(scenario, wait_to_send)


@pytest.mark.parametrize("turns", [1, 2], ids=["in one turn", "in two turns"])
def test_a_payload_is_freed_with_its_sum_though_more_orders_came(turns: int) -> None:
    async def scenario(dialogue: PlaneDialogue) -> None:
        pieces: list[weakref.ref[TensorChunk]] = []
        alive: list[list[bool]] = []
        dialogue.on_finished = lambda: alive.append([piece() is not None for piece in pieces])
        sums_may_run = dialogue.block_sums()
        orders: list[Message] = []
        for seed in range(2):
            piece = received(BFLOAT16, seed)  # its values are not a view of its payload
            pieces.append(weakref.ref(piece))
            orders += finish(dialogue.arrive(piece))
            del piece
        for part in [orders] if turns == 1 else [orders[:3], orders[3:]]:
            dialogue.plane.carry_out(part)
        sums_may_run.set()
        await dialogue.wait_for_threads()
        assert len(alive) == 2
        assert alive[1][0] is False

    with_plane(scenario)


def test_a_sum_that_is_never_finished_does_not_hold_the_kernel_thread() -> None:
    """The order to stage it waits on the kernel thread for the thread of sums, which fails or is closed."""

    async def run() -> None:
        dialogue = PlaneDialogue(sends_sums=False)
        sums_may_run = dialogue.block_sums()
        dialogue.plane.carry_out(
            [pb.FinishSum(chunks=[0], job=JOB, node=ROOT), pb.StageChunks(chunks=[0], job=JOB)]
        )
        dialogue.plane.close("over")
        sums_may_run.set()
        await asyncio.to_thread(dialogue.join_threads)
        assert dialogue.failed.empty()

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


# ---- workers ----


class StolenCall:
    """A data stream that names a worker's incarnation."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((INCARNATION_KEY, "w1"),)


def test_a_data_stream_of_another_caller_does_not_end_the_worker_that_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caller = Caller(CallerKind.WORKER, "w2", bound_names=("w2",))
    monkeypatch.setattr("services.transport.access.enforcement.current_caller", lambda: caller)

    async def scenario(dialogue: PlaneDialogue) -> None:
        context: Any = StolenCall()
        plane = dialogue.plane
        plane.carry_out([pb.WorkerAttends(session=SESSION, incarnation="w1", name="w1")])
        worker = await plane.find_worker("w1")
        assert worker is not None
        with pytest.raises(Denied, match="worker w1 shows a certificate that is bound to w2"):
            await plane.serve(worker, context)
        assert await plane.find_worker("w1") is worker
        worker.mailbox.put(cluster.WorkerCommand())
        await worker.mailbox.take()  # raises why it is closed, if it is
        assert dialogue.reports == []

    with_plane(scenario)
