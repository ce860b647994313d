"""Tests of evaluations: each held-out batch is leased once, and losses are summed in index order."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.leasing.evaluation import Evaluation
from protos.cluster_pb2 import BatchLoss


def results(first: int, count: int) -> list[BatchLoss]:
    return [
        BatchLoss(index=index, sum=0.1 * 3**index, tokens=5 + index) for index in range(first, first + count)
    ]


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60))
def test_the_loss_is_the_same_for_any_order_of_leases(batches: int, story: list[tuple[int, bool]]) -> None:
    evaluation = Evaluation(batches)
    losses = results(0, batches)
    everybody = [(session, True) for _ in range(batches) for session in range(4)]
    for lease, (session, lives) in enumerate(story + everybody, 1):
        if not lives:
            evaluation.abandon(session)
        elif evaluation.is_busy(session):
            lease_book = next(each for each in evaluation.leases.values() if each.session == session)
            assert evaluation.finish(lease_book.lease, results(lease_book.first, lease_book.count))
        else:
            evaluation.grant(lease, session, 4, 0.0)
    while evaluation.leases:
        lease_book = next(iter(evaluation.leases.values()))
        evaluation.finish(lease_book.lease, results(lease_book.first, lease_book.count))
    assert evaluation.complete
    expected = math.fsum(each.sum for each in losses) / sum(each.tokens for each in losses)
    assert evaluation.loss == expected
    assert evaluation.grant(999, 1, 1, 0.0) is None


def test_an_unknown_lease_changes_nothing() -> None:
    evaluation = Evaluation(2)
    assert not evaluation.finish(9, results(0, 2))
    assert not evaluation.complete


def test_results_outside_a_lease_are_not_taken() -> None:
    evaluation = Evaluation(8)
    lease_book = evaluation.grant(1, 1, 1, 0.0)
    assert lease_book is not None and (lease_book.first, lease_book.count) == (0, 2)
    evaluation.finish(1, results(0, 8))
    assert not evaluation.complete


def test_a_lease_that_gave_too_little_is_granted_again() -> None:
    evaluation = Evaluation(2)
    evaluation.grant(1, 1, 1, 0.0)
    evaluation.finish(1, [])
    lease_book = evaluation.grant(2, 2, 1, 0.0)
    assert lease_book is not None and lease_book.first == 0


def test_a_stalled_lease_can_be_released() -> None:
    evaluation = Evaluation(1)
    lease_book = evaluation.grant(1, 1, 1, 10.0)
    assert lease_book is not None
    evaluation.release(lease_book)
    assert not evaluation.is_busy(1)
    assert evaluation.grant(2, 2, 1, 12.0) is not None
