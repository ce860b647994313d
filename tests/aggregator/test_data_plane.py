"""The core's orders go to the shard that has the payload, and stale pieces are discarded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.protobuf.message import Message

from aggregator.core import events as ev
from aggregator.data_plane import DataPlane
from aggregator.shards.link import ShardLink
from plane.group import PlaneGroup
from plane.messages import SequenceFilter, unwrap, wrap_order, wrap_report
from plane.streams.worker_sessions import WorkerSessions
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from protos.cluster_pb2 import LayoutPart
from protos.tensors_pb2 import ChunkHeader
from services.errors import Refusal
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.layout_parts import Piece
from services.tensors.stripes import Stripe
from services.timeouts import Timeouts
from services.transport.links import LinkClosed
from services.transport.security import Security
from tests.support.dialogues.aggregator import name_chunks

ROOT, LEFT, RIGHT = (pb.SumNode(first=first, count=count) for first, count in ((0, 2), (0, 1), (1, 1)))
MERGE = pb.MergeSums(job="j", chunks=[3], left=LEFT, right=RIGHT, parent=ROOT)


def line(body: Message) -> str:
    """Return an order as one line."""
    match body:
        case pb.KeepPieces():
            return f"keep piece {' '.join(map(str, body.arrivals))}"
        case pb.DiscardPieces():
            return f"discard piece {' '.join(map(str, body.arrivals))}"
        case pb.KeepSum() | pb.MergeSums() | pb.FinishSum() | pb.DropSum():
            return f"{type(body).__name__} {name_chunks(body.chunks)}"
    return type(body).__name__


class Core:
    """A core whose answers a test sets."""

    def __init__(self) -> None:
        self.runs: dict[str, object] = {"j": object()}
        self.stale: Refusal | None = None

    def check_chunk(self, session: int, header: ChunkHeader) -> Refusal | None:
        return self.stale

    def expected_elements(self, job: str) -> int | None:
        return 4 * CHUNK_ELEMENTS


class Dialogue:
    """A data plane over links to shards, which record orders and have no shards behind them."""

    def __init__(self, shards: int = 2) -> None:
        self.sent: list[tuple[int, str]] = []
        self.fed: list[ev.DataStreamOpened | ev.PiecesArrived] = []
        self.finished: list[int] = []
        self.failures: list[str] = []
        self.core = Core()
        self.sessions = WorkerSessions(1)
        links = [
            ShardLink(
                f"host-{index}:7073",
                Stripe(index, shards),
                security=Security(),
                name="agg",
                incarnation="i",
                epoch=1,
                cluster="c0ffee00c0ffee00",
                timeouts=Timeouts.from_heartbeat(1.0),
            )
            for index in range(shards)
        ]
        for index, link in enumerate(links):
            vars(link)["send_order"] = lambda body, index=index: self.sent.append((index, line(body)))
        self.shards = PlaneGroup(links)
        self.decide: Callable[[ev.PiecesArrived], Sequence[ev.PlaneOrder]] = lambda event: ()
        self.data_plane = DataPlane(
            self.shards,
            core=self.core,  # type: ignore[arg-type]  # has what a data plane calls
            sessions=self.sessions,
            feed=self._feed,
            on_sums_finished=lambda order: self.finished.extend(order.chunks),
            on_failure=lambda error: self.failures.append(str(error)),
            shards=links,
        )
        self.data_plane.submit([pb.DropSums(job="j")])
        self.orders()

    def _feed(self, event: ev.DataStreamOpened | ev.PiecesArrived) -> None:
        self.fed.append(event)
        if isinstance(event, ev.PiecesArrived) and (effects := self.decide(event)):
            self.data_plane.submit(effects)

    def report(self, shard: int, body: Any) -> None:
        """Give a report of a shard to its handler."""
        self.shards.report_handlers[type(body)](self.shards.links[shard], body)

    def arrive(self, shard: int, arrival: int, *chunks: int) -> None:
        """Report a run of whole chunks."""
        pieces = [LayoutPart(offset=chunk * CHUNK_ELEMENTS, elements=CHUNK_ELEMENTS) for chunk in chunks]
        header = ChunkHeader(job="j", index=chunks[0])
        self.report(shard, pb.ArrivedPieces(session=1, arrival=arrival, header=header, pieces=pieces))

    def orders(self) -> list[tuple[int, str]]:
        """Return the orders since the last call, with the shard's number."""
        sent, self.sent = self.sent, []
        return sent


def with_dialogue(scenario: Callable[[Dialogue], Any], shards: int = 2) -> None:
    async def run() -> None:
        result = scenario(Dialogue(shards))
        if result is not None:
            await result

    asyncio.run(run())


def test_an_error_of_a_shard_counts_against_the_running_job_alone() -> None:
    def scenario(dialogue: Dialogue) -> None:
        dialogue.report(1, pb.OrderFailed(reason="KeyError"))
        assert dialogue.failures == ["shard 1 of 2 (host-1:7073): KeyError"]
        dialogue.core.runs.clear()
        dialogue.report(1, pb.OrderFailed(reason="KeyError"))
        assert len(dialogue.failures) == 1, "the end of the shard's stream has all shards start over"

    with_dialogue(scenario)


def test_a_payload_is_kept_merged_and_finished_in_its_shard() -> None:
    def scenario(dialogue: Dialogue) -> None:
        dialogue.decide = lambda event: (
            pb.KeepPieces(job="j", chunk=3, arrivals=[event.arrival]),
            pb.KeepSum(job="j", chunks=[3], lease=7, node=RIGHT),
            MERGE,
            pb.FinishSum(job="j", chunks=[3], node=ROOT, header=ChunkHeader(index=3)),
        )
        dialogue.arrive(1, 5, 3)
        expected = ["keep piece 5", "KeepSum #3", "MergeSums #3", "FinishSum #3"]
        assert dialogue.orders() == [(1, each) for each in expected]
        assert dialogue.finished == [3]

    with_dialogue(scenario)


def test_a_stale_piece_is_discarded() -> None:
    def scenario(dialogue: Dialogue) -> None:
        dialogue.arrive(0, 1, 2, 0)
        pieces = [Piece(chunk, chunk * CHUNK_ELEMENTS, CHUNK_ELEMENTS) for chunk in (2, 0)]
        arrived = ev.PiecesArrived(1, ChunkHeader(job="j", index=2), pieces, arrival=1)
        assert dialogue.fed == [arrived]
        dialogue.core.stale = Refusal("its step is 9")
        dialogue.arrive(0, 3, 2, 0)
        dialogue.core.stale = None
        for arrival, chunk in ((5, 1), (6, 99)):  # a chunk of another shard, and one beyond the layout
            dialogue.arrive(0, arrival, chunk)
        assert len(dialogue.fed) == 1, "the core does not see stale pieces"
        assert dialogue.orders() == [(0, f"discard piece {arrivals}") for arrivals in ("3 4", "5", "6")]

    with_dialogue(scenario)


def test_pieces_of_a_lease_are_dropped_in_all_shards() -> None:
    def scenario(dialogue: Dialogue) -> None:
        dialogue.data_plane.submit(
            [pb.KeepSum(job="j", chunks=[0], node=LEFT), pb.KeepSum(job="j", chunks=[1])]
        )
        assert dialogue.orders() == [(0, "KeepSum #0"), (1, "KeepSum #1")]
        dialogue.data_plane.submit([pb.DropPieces(job="j", lease=7)])
        assert dialogue.orders() == [(0, "DropPieces"), (1, "DropPieces")]

    with_dialogue(scenario)


def test_no_orders_are_sent_for_sums_that_were_lost_with_a_shard() -> None:
    def scenario(dialogue: Dialogue) -> None:
        for callback in dialogue.shards.on_lost:
            callback("shard 0 of 2: gone")
        dialogue.decide = lambda event: (
            pb.KeepPieces(job="j", chunk=0, arrivals=[event.arrival]),
            pb.KeepSum(job="j", chunks=[0], node=RIGHT),
            pb.MergeSums(job="j", chunks=[0], left=LEFT, right=RIGHT, parent=ROOT),
        )
        dialogue.arrive(0, 1, 0)
        dialogue.data_plane.submit([pb.DiscardPieces(job="j", chunk=0, arrivals=[2])])
        expected = [(0, "discard piece 1"), (0, "discard piece 2")]
        assert dialogue.orders() == expected, "the core still knows LEFT, which no shard has"
        dialogue.data_plane.submit([pb.DropSums(job="j")])
        dialogue.decide = lambda event: (pb.KeepPieces(job="j", chunk=0, arrivals=[event.arrival]),)
        dialogue.arrive(0, 3, 0)
        assert dialogue.orders() == [(0, "DropSums"), (1, "DropSums"), (0, "keep piece 3")]

    with_dialogue(scenario)


def test_sums_of_one_job_that_are_dropped_say_nothing_of_anothers() -> None:
    def scenario(dialogue: Dialogue) -> None:
        dialogue.data_plane.submit([pb.DropSums(job="k")])
        for callback in dialogue.shards.on_lost:
            callback("shard 0 of 2: gone")
        dialogue.orders()
        dialogue.data_plane.submit([pb.DropSums(job="j")])
        dialogue.data_plane.submit(
            [pb.KeepPieces(job=job, arrivals=[number]) for number, job in enumerate("jk")]
        )
        assert dialogue.orders()[2:] == [(0, "keep piece 0"), (0, "discard piece 1")]

    with_dialogue(scenario)


def test_a_worker_counts_as_exchanging_once_all_shards_have_its_streams() -> None:
    def scenario(dialogue: Dialogue) -> None:
        session = dialogue.sessions.open(cluster.Hello(name="w", incarnation="i"))
        dialogue.data_plane.worker_connected(session)
        assert dialogue.orders() == [(0, "WorkerAttends"), (1, "WorkerAttends")]
        dialogue.report(1, pb.WorkerExchanges(session=session.number))
        assert dialogue.fed == []
        dialogue.report(0, pb.WorkerExchanges(session=session.number))
        assert dialogue.fed == [ev.DataStreamOpened(session.number)]
        welcome = cluster.Welcome()
        dialogue.data_plane.fill_welcome(session.number, welcome)
        assert (welcome.session, list(welcome.shards)) == (session.number, ["host-0:7073", "host-1:7073"])
        dialogue.data_plane.worker_lost(session, "it stops")
        assert dialogue.orders() == [(0, "WorkerLeft"), (1, "WorkerLeft")]

    with_dialogue(scenario)


def test_a_worker_that_one_shard_lost_is_disconnected() -> None:
    async def scenario(dialogue: Dialogue) -> None:
        session = dialogue.sessions.open(cluster.Hello(name="w", incarnation="i"))
        dialogue.data_plane.worker_connected(session)
        dialogue.report(1, pb.WorkerGone(session=session.number, reason="refused a chunk"))
        with pytest.raises(Exception, match=r"shard 1 of 2 \(host-1:7073\): refused a chunk"):
            await session.mailbox.wait_closed()

    with_dialogue(scenario)


def test_all_shards_are_ordered_to_send_a_worker_new_weights_also_after_sums_were_lost() -> None:
    def scenario(dialogue: Dialogue) -> None:
        dialogue.shards.on_lost[0]("gone")
        dialogue.data_plane.submit([pb.SendVersion(job="j", session=1, generation=1, step=2)])
        assert dialogue.orders() == [(0, "SendVersion"), (1, "SendVersion")]

    with_dialogue(scenario)


def test_an_envelope_of_a_newer_version_is_ignored() -> None:
    assert unwrap(pb.PlaneOrder()) is None
    assert unwrap(wrap_report(cluster.Heartbeat())) == cluster.Heartbeat()
    assert unwrap(pb.PlaneOrder.FromString(wrap_order(MERGE).SerializeToString())) == MERGE


def test_a_repeated_message_is_ignored_and_a_missing_one_ends_the_stream() -> None:
    in_order = SequenceFilter()
    assert [in_order.is_new(number) for number in (1, 2, 2, 1, 0, 3)] == [
        True,
        True,
        False,
        False,
        True,
        True,
    ]
    with pytest.raises(LinkClosed, match=r"5, expected at most 4"):
        in_order.is_new(5)
