"""Pieces of sums are taken in the order that all workers agree on, each once, and only those that may be sent."""

from __future__ import annotations

from collections.abc import Sequence

from plane.sum_queue import SumQueue
from protos import plane_pb2 as pb
from protos.cluster_pb2 import Range
from protos.tensors_pb2 import GRADIENT, INITIAL_WEIGHTS, ChunkHeader, ChunkKind, Findings, NonFinite
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.layout_parts import LayoutParts
from services.tensors.stripes import Stripe

C = CHUNK_ELEMENTS
ALL = Range(count=100)
WHOLE = Stripe()


def make_queue(*parts: tuple[int, int]) -> SumQueue:
    """Return a queue for a job of 5 chunks, of which a worker has these parts; all without any."""
    queue = SumQueue()
    own = LayoutParts(parts or [(0, 5 * C)]).to_messages()
    queue.carry_out(pb.PassJob(job="a", elements=5 * C, parts=own))
    return queue


def order(queue: SumQueue, lease: int, *chunks: Range, first: int = 0, kind: ChunkKind = GRADIENT) -> None:
    queue.carry_out(
        pb.SendSum(header=ChunkHeader(lease=lease, kind=kind), chunks=chunks, first_element=first)
    )


def take(queue: SumQueue, most: int = 100, stripe: Stripe = WHOLE) -> list[tuple[int, int]]:
    """Return lease and offset of the pieces that a stream takes."""
    return [(each.lease, each.offset) for each in queue.take(stripe, most)]


def offsets(lease: int, chunks: Sequence[int]) -> list[tuple[int, int]]:
    return [(lease, chunk * C) for chunk in chunks]


def test_the_first_element_of_the_newest_order_counts() -> None:
    queue = make_queue()
    order(queue, 1, ALL, first=5 * C)
    assert take(queue) == []
    order(queue, 1, first=2 * C + 1)
    assert take(queue, most=1) == offsets(1, [4])
    order(queue, 1, first=4 * C)
    assert take(queue) == [], "a narrower window holds back what was not sent yet"
    order(queue, 1)
    assert take(queue) == offsets(1, [3, 2, 1, 0])


def test_pieces_of_the_sum_that_was_ordered_first_come_first() -> None:
    queue = make_queue()
    order(queue, 1, ALL, first=4 * C)
    order(queue, 2, ALL, first=3 * C)
    assert take(queue) == offsets(1, [4])
    order(queue, 1, first=3 * C)
    assert take(queue) == offsets(1, [3]), "before those of lease 2 that wait longer"
    assert take(queue) == offsets(2, [4, 3])


def test_pieces_that_are_wanted_again_are_queued_once_in_their_order() -> None:
    queue = make_queue()
    order(queue, 1, ALL)
    assert take(queue, most=2) == offsets(1, [4, 3])
    order(queue, 1, Range(first=1, count=1), Range(first=4, count=9))
    assert take(queue) == offsets(1, [4, 2, 1, 0])


def test_initial_weights_come_first_piece_first() -> None:
    queue = make_queue()
    order(queue, 1, Range(first=3, count=1), Range(first=0, count=2), kind=INITIAL_WEIGHTS)
    assert take(queue) == offsets(1, [0, 1, 3])


def test_a_stripe_takes_its_chunks_alone() -> None:
    queue = make_queue()
    order(queue, 1, ALL, first=C)
    assert take(queue, stripe=Stripe(0, 2)) == offsets(1, [4, 2])
    assert take(queue, stripe=Stripe(1, 2)) == offsets(1, [3, 1])


def test_a_worker_s_parts_are_cut_at_chunks() -> None:
    queue = make_queue((100, C + 50), (C + 60, 2 * C))
    order(queue, 1, ALL)
    found = [(each.index, each.offset, each.elements) for each in queue.take(Stripe(), 10)]
    assert found == [(1, C + 60, C - 60), (1, C, 50), (0, 100, C - 100)]


def test_losses_are_in_the_header_of_chunk_0_alone() -> None:
    queue = make_queue()
    header = ChunkHeader(
        lease=1, kind=GRADIENT, findings=Findings(losses=[1.0], non_finite=[NonFinite(micro_batch=1)])
    )
    queue.carry_out(pb.SendSum(header=header, chunks=[ALL]))
    taken = queue.take(Stripe(), 10)
    assert [list(each.findings.losses) for each in taken] == [[], [], [], [], [1.0]]
    assert [len(each.findings.non_finite) for each in taken] == [0, 0, 0, 0, 1]


def test_dropped_pieces_are_not_sent_and_dropping_twice_is_no_error() -> None:
    queue = make_queue()
    order(queue, 1, ALL)
    for _ in range(2):
        queue.carry_out(pb.DropPieces(lease=1))
    assert take(queue) == []
