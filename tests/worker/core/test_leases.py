"""The worker's core begins leases when their weights arrive, drops them, and reports how they ended."""

from __future__ import annotations

import pytest

from protos import cluster_pb2 as pb
from services.pipeline.split import StageRun
from services.protocol.plan import MOST_EVALUATION_BATCHES
from tests.support.dialogues.worker import describe_effect, start_with_weights
from worker.core import events as ev
from worker.core.leases import check_work

# ---- leases that are granted before their weights have arrived ----


def test_a_lease_begins_with_the_first_chunk_of_its_weights() -> None:
    talk = start_with_weights()
    assert talk.lease(8, 1, 1) == [], "its weights have not arrived"
    assert talk.sent() == []
    assert talk.weights(1, 1, 0) == ["load #0", "perform 8"]
    assert talk.weights(1, 1, 1) == ["load #1"]
    assert talk.lease(9, 1, 1) == ["perform 9"], "some of its weights have arrived"
    assert talk.weights(1, 1, 2) == ["load #2"]
    assert talk.loaded(1, 1) == ["send WeightsLoaded 1.1"]
    assert talk.lease(10, 1, 1) == ["perform 10"]


def test_leases_are_dropped_when_a_job_begins_again_with_other_initial_weights() -> None:
    talk = start_with_weights()
    talk.lease(7)
    assert talk.lease(8, 0, 0, phase=pb.INITIALISE) == ["drop lease 7", "perform 8"]


def test_the_previous_lease_is_dropped_before_the_next_begins() -> None:
    talk = start_with_weights()
    talk.lease(7)
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0)))
    assert talk.lease(8, 1, 1) == []
    assert talk.sent() == ["7 #2", "7 #1", "7 #0 losses [1.0, 2.0]"], "the aggregator may still need its sum"
    assert talk.weights(1, 1, 0) == ["drop lease 7", "load #0", "perform 8"]


def test_a_lease_is_dropped_when_newer_weights_arrive_instead_of_its_own() -> None:
    talk = start_with_weights()
    talk.lease(8, 1, 1)
    talk.lease(9, 2, 0)
    assert talk.weights(2, 0, 0) == ["load #0", "perform 9"], "lease 8 is of an older generation"
    assert talk.order(pb.Revoke(job="a", lease=8)) == []
    assert talk.lease(10, 1, 1) == [], "it is stale"


def test_a_lease_waits_while_older_weights_arrive() -> None:
    talk = start_with_weights()
    talk.lease(8, 1, 2)
    assert talk.weights(1, 1, 0) == ["load #0"], "weights of the previous step"
    assert talk.weights(1, 2, 0) == ["load #0", "perform 8"]


def test_a_lease_is_revoked_or_lost_before_its_weights_arrive() -> None:
    talk = start_with_weights()
    talk.lease(8, 1, 1)
    talk.lease(9, 1, 1)
    assert talk.order(pb.Revoke(job="a", lease=8)) == [], "it had not begun"
    assert talk.weights(1, 1, 0) == ["load #0", "perform 9"]
    assert talk.give(ev.Disconnected()) == ["drop lease 9"]
    talk.connect(epoch=2)
    assert talk.weights(1, 1, 0, 1, 2) == ["load #1", "load #2"]


def test_an_evaluation_begins_with_its_first_weights_too() -> None:
    talk = start_with_weights()
    assert talk.lease(8, 1, 1, phase=pb.EVALUATE) == []
    assert talk.weights(1, 1, 0) == ["load #0", "perform 8"]


# ---- how a lease ends ----


def test_a_revoked_lease_is_dropped() -> None:
    talk = start_with_weights()
    talk.lease(7)
    assert talk.order(pb.Revoke(job="a", lease=7)) == ["drop lease 7"]
    assert talk.order(pb.Revoke(job="a", lease=7)) == []
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0)))
    assert talk.sent() == []


def test_a_failed_lease_is_dropped_and_reported() -> None:
    talk = start_with_weights()
    talk.lease(7)
    assert talk.give(ev.LeaseFailed(7, "out of memory")) == ["drop lease 7", "send Failure: out of memory"]


def test_an_evaluation_ends_with_its_report() -> None:
    talk = start_with_weights()
    assert talk.lease(7, phase=pb.EVALUATE) == ["perform 7"]
    assert talk.give(ev.LeaseEvaluated(7, (pb.BatchLoss(index=0, sum=1.0, tokens=2),))) == ["send Evaluated"]
    assert talk.order(pb.Revoke(job="a", lease=7)) == []


# ---- verification ----


def test_a_verification_reports_its_checksum_and_sends_no_sum() -> None:
    talk = start_with_weights()
    assert talk.lease(5, phase=pb.VERIFY) == ["perform 5"]
    assert talk.sent() == []
    checksum = pb.Checksum(micro_batch=3, crc32c=9)
    effects = talk.core.handle(ev.LeaseComputed(5, 0.0, 0, (checksum,)))
    assert [describe_effect(effect) for effect in effects] == ["drop lease 5", "send Computed"]
    (message,) = [effect.body for effect in effects if isinstance(effect, ev.ToAggregator)]
    assert isinstance(message, pb.Computed)
    assert (message.lease, list(message.checksums)) == (5, [checksum])
    assert 5 not in talk.core.leases


def test_a_verification_is_dropped_when_newer_weights_arrive() -> None:
    talk = start_with_weights()
    talk.lease(5, phase=pb.VERIFY)


# ---- leases of more work than the job has ----


@pytest.mark.parametrize(
    ("stages", "evaluation_batches", "stop", "is_refused"),
    [
        (None, 3, 3, False),
        (None, 3, 4, True),
        (None, 0, 1, True),
        (StageRun(1, 1), 0, 3, False),
        (StageRun(1, 1), 0, MOST_EVALUATION_BATCHES + 1, True),
        (StageRun(0, 1), 3, 4, True),
    ],
)
def test_an_evaluation_is_held_to_the_number_of_batches_if_the_worker_knows_it(
    stages: StageRun | None, evaluation_batches: int, stop: int, is_refused: bool
) -> None:
    """A stage between the first and the last reads no data."""
    built = ev.Built("a", "hash", 10, evaluation_batches, 5, stages=stages)
    lease = pb.Lease(lease=7, phase=pb.EVALUATE, first=stop - 1, count=1)
    assert (check_work(lease, built) is not None) == is_refused
