"""Tests of one step's sum: its assignments, the senders' window, the loss."""

from __future__ import annotations

import math

import pytest

from aggregator.core.sums.step_sum import StepSum
from protos.tensors_pb2 import Findings, NonFinite
from services.protocol.plan import WINDOW_CHUNKS
from services.protocol.versions import Version
from services.tensors.reduction_tree import Node
from tests.support.chunk_sets import chunk_set

VERSION = Version(1, 7)


def planned_step(micro_batches: int, *sessions: int, chunks: int = 1) -> StepSum:
    """Return a planned step whose lease ids are the positions of its assignments plus 1."""
    step_sum = StepSum(VERSION, micro_batches, chunks, 0.0)
    step_sum.distribute(dict.fromkeys(sessions, 1.0), 0.0)
    for lease, assignment in enumerate(step_sum.assignments, 1):
        step_sum.grant(assignment, lease, assignment.since_seconds)
    return step_sum


def test_a_new_step_is_one_orphan() -> None:
    step_sum = StepSum(VERSION, 5, 1, 0.0)
    assert [each.node for each in step_sum.orphans()] == [Node(0, 5)]
    step_sum.distribute({}, 0.0)
    assert [each.node for each in step_sum.orphans()] == [Node(0, 5)]


def test_nodes_of_a_lost_worker_are_leased_again() -> None:
    step_sum = planned_step(4, 1, 2)
    step_sum.abandon(1, 5.0)
    assert [each.node for each in step_sum.orphans()] == [Node(0, 2)]
    step_sum.distribute({2: 1.0, 3: 1.0}, 5.0)
    assert step_sum.orphans() == []
    assert step_sum.sessions() == {2, 3}
    assert sorted(leaf for each in step_sum.assignments for leaf in range(each.node.first, each.node.stop)) == [
        0, 1, 2, 3,
    ]  # fmt: skip


def test_work_is_left_to_workers_that_are_soon_free() -> None:
    step_sum = planned_step(12, 1, 2, 3)
    step_sum.of_session(1)[0].computed = True
    step_sum.abandon(3, 4.0)
    step_sum.distribute({1: 1.0, 2: 1.0}, 4.0, {2: step_sum.busy_seconds(2, 1.0, 4.0)})
    assert [each.node for each in step_sum.of_session(1)] == [Node(0, 4), Node(8, 2)]
    assert [each.node for each in step_sum.orphans()] == [Node(10, 2)]
    step_sum.distribute({1: 1.0, 2: 1.0}, 4.1, {1: step_sum.busy_seconds(1, 1.0, 4.1)})
    assert [each.node for each in step_sum.of_session(2)] == [Node(4, 4), Node(10, 2)]


def test_an_orphan_for_busy_workers_alone_is_not_split() -> None:
    step_sum = planned_step(4, 1, 2)
    step_sum.abandon(1, 0.0)
    step_sum.distribute({2: 100.0, 3: 1e-3}, 0.0, {2: 0.02})
    assert [(each.node, each.session) for each in step_sum.assignments] == [
        (Node(0, 2), None),
        (Node(2, 2), 2),
    ]


def test_a_late_worker_is_expected_to_need_the_same_time_again() -> None:
    step_sum = planned_step(4, 1)
    assert [step_sum.busy_seconds(1, 2.0, now) for now in (0.0, 1.5, 2.0, 3.0, 12.0)] == [
        2.0,
        0.5,
        0.0,
        1.0,
        10.0,
    ]
    step_sum.of_session(1)[0].computed = True
    assert step_sum.busy_seconds(1, 2.0, 12.0) == 0.0


def test_the_time_of_two_leases_counts_for_the_first() -> None:
    step_sum = planned_step(3, 1, 2)  # leases 0-1 and 2, which go to the same worker below
    step_sum.assignments[1].session = step_sum.assignments[0].session
    step_sum.assignments[0].computed = True
    assert step_sum.busy_seconds(1, 1.0, 2.5) == 0.5


def test_delivered_chunks_of_a_lost_worker_are_no_orphans() -> None:
    step_sum = planned_step(2, 1, 2)
    first = step_sum.assignments[0]
    step_sum.arrive(first, 0)
    step_sum.abandon(1, 5.0)
    assert step_sum.orphans() == []


def test_a_void_lease_is_not_found() -> None:
    step_sum = planned_step(2, 1, 2)
    assert step_sum.by_lease(1) is step_sum.assignments[0]
    step_sum.abandon(1, 0.0)
    assert step_sum.by_lease(1) is None
    assert step_sum.by_lease(0) is None, "0 is no lease"


def test_a_worker_is_busy_until_it_has_computed() -> None:
    step_sum = planned_step(2, 1, 2)
    assert step_sum.is_busy(1) and not step_sum.is_busy(3)
    step_sum.of_session(1)[0].computed = True
    assert not step_sum.is_busy(1) and step_sum.is_busy(2)


def test_the_window_moves_with_the_finished_chunks_in_worthwhile_steps() -> None:
    step_sum = planned_step(1, 1, chunks=20)
    assert step_sum.window_end == WINDOW_CHUNKS
    limits = []
    for chunk in reversed(range(20)):
        step_sum.arrive(step_sum.assignments[0], chunk)
        if step_sum.widen():
            limits.append(step_sum.window_end)
    assert limits == [12, 16, 20]


def test_many_workers_have_narrower_windows_so_that_together_they_send_no_more() -> None:
    for workers, window in ((1, 8), (2, 8), (4, 4), (8, 2), (16, 1), (100, 1)):
        step_sum = planned_step(workers, *range(workers), chunks=40)
        assert step_sum.window_end == window, f"{workers} workers"
        for chunk in reversed(range(40)):
            for assignment in step_sum.assignments:
                step_sum.arrive(assignment, chunk)
            step_sum.widen()
            finished = 40 - chunk
            assert finished < step_sum.window_end or finished == 40, (
                f"{workers} workers are held up at chunk {chunk}"
            )
            assert step_sum.window_end <= finished + window
        assert step_sum.window_end == 40


@pytest.mark.parametrize("room", [1, 3])
def test_windows_are_as_long_as_there_is_room_for(room: int) -> None:
    step_sum = StepSum(VERSION, 4, 200, 0.0, room)
    step_sum.distribute(dict.fromkeys(range(4), 1.0), 0.0)
    assert step_sum.window_end == room * 4
    for chunk in range(199, 187, -1):
        for assignment in step_sum.assignments:
            step_sum.arrive(assignment, chunk)
    assert step_sum.widen()
    assert step_sum.window_end == 12 + room * 4


def test_a_window_stays_when_orphans_are_planned_again() -> None:
    step_sum = planned_step(2, 1, 2, chunks=40)
    for chunk in reversed(range(30, 40)):
        for assignment in step_sum.assignments:
            step_sum.arrive(assignment, chunk)
        step_sum.widen()
    window_end = step_sum.window_end
    step_sum.abandon(1, 5.0)
    step_sum.distribute(dict.fromkeys(range(1, 40), 1.0), 5.0)
    assert step_sum.window_end == window_end


def test_a_window_restarts_with_reopened_chunks() -> None:
    step_sum = planned_step(2, 1, 2, chunks=40)
    for chunk in reversed(range(10, 40)):
        for assignment in step_sum.assignments:
            step_sum.arrive(assignment, chunk)
        step_sum.widen()
    assert step_sum.window_end >= 30 + WINDOW_CHUNKS // 2
    assert not step_sum.reopen(chunk_set([], 40))
    assert step_sum.window_end >= 30 + WINDOW_CHUNKS // 2
    assert step_sum.reopen(chunk_set(range(36), 40)).runs() == [range(10, 36)]
    assert step_sum.window_end == 4 + WINDOW_CHUNKS, "four chunks are finished still"
    for assignment in step_sum.assignments:
        step_sum.arrive(assignment, 35)
    assert not step_sum.widen(), "one more is not worth a message"


def test_a_small_layout_needs_no_window_messages() -> None:
    step_sum = planned_step(1, 1, chunks=3)
    assert step_sum.window_end == 3
    step_sum.arrive(step_sum.assignments[0], 2)
    assert not step_sum.widen()


def test_the_loss_is_the_mean_over_micro_batches_in_their_order() -> None:
    step_sum = planned_step(3, 1, 2)
    losses = [0.1, 0.7, 1e16]
    assert step_sum.loss is None
    for assignment in reversed(step_sum.assignments):
        node = assignment.node
        step_sum.note_findings(assignment, "a", Findings(losses=losses[node.first : node.stop]))
        step_sum.arrive(assignment, 0)
    assert step_sum.loss == math.fsum(losses) / 3


def test_losses_of_another_length_are_ignored() -> None:
    step_sum = planned_step(2, 1)
    step_sum.note_findings(step_sum.assignments[0], "a", Findings(losses=[1.0]))
    step_sum.arrive(step_sum.assignments[0], 0)
    assert step_sum.loss is None


def test_micro_batches_that_are_not_finite_are_named_in_their_order() -> None:
    step_sum = planned_step(4, 1, 2)
    left, right = step_sum.assignments
    step_sum.note_findings(right, "b", Findings(non_finite=[NonFinite(micro_batch=3, parameter="v")]))
    found = [NonFinite(micro_batch=0, parameter="w"), NonFinite(micro_batch=2, parameter="x")]
    step_sum.note_findings(left, "a", Findings(non_finite=found))
    step_sum.note_findings(right, "b", Findings(non_finite=[NonFinite(micro_batch=3, parameter="v")]))
    named = [(each.worker, each.micro_batch, each.parameter) for each in step_sum.non_finite]
    assert named == [("a", 0, "w"), ("b", 3, "v")], "once each, and only a worker's own micro-batches"


def test_what_counts_is_added_as_the_sums_of_chunk_0_are() -> None:
    step_sum = planned_step(3, 1, 2)
    first, second = step_sum.assignments
    step_sum.note_findings(first, "a", Findings(count=(1 << 60) + 1))
    step_sum.arrive(first, 0)
    step_sum.arrive(first, 0)  # a repeated one
    step_sum.note_findings(second, "b", Findings(count=2))
    step_sum.arrive(second, 1)
    assert step_sum.arrive(second, 0).done
    assert step_sum.findings.count == (1 << 60) + 3
