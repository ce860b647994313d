"""The worker's core begins leases when their weights come, drops them, and tells how they ended."""

from __future__ import annotations

from protos import cluster_pb2 as pb
from tests.support.dialogues.worker import holding, line
from worker.core import events as ev

# ---- leases that are granted before their weights are on the mesh ----


def test_a_lease_is_begun_with_the_first_chunk_of_its_weights() -> None:
    talk = holding()
    assert talk.lease(8, 1, 1) == [], "its weights are still to come"
    assert talk.sent() == []
    assert talk.weights(1, 1, 0) == ["load #0", "perform 8"]
    assert talk.weights(1, 1, 1) == ["load #1"]
    assert talk.lease(9, 1, 1) == ["perform 9"], "its weights are coming in"
    assert talk.weights(1, 1, 2) == ["load #2"]
    assert talk.loaded(1, 1) == ["say holding 1.1"]
    assert talk.lease(10, 1, 1) == ["perform 10"]


def test_the_former_lease_is_dropped_before_the_next_begins() -> None:
    talk = holding()
    talk.lease(7)
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0)))
    assert talk.lease(8, 1, 1) == []
    assert talk.sent() == ["7 #2", "7 #1", "7 #0 losses [1.0, 2.0]"], "its sum may still be wanted"
    assert talk.weights(1, 1, 0) == ["drop lease 7", "load #0", "perform 8"]


def test_a_lease_whose_weights_never_come() -> None:
    talk = holding()
    talk.lease(8, 1, 1)
    talk.lease(9, 2, 0)
    assert talk.weights(2, 0, 0) == ["load #0", "perform 9"], "the generation is another: nobody wants 8"
    assert talk.order(pb.Revoke(job="a", lease=8)) == []
    assert talk.lease(10, 1, 1) == [], "late"


def test_a_lease_outlasts_weights_older_than_its_own() -> None:
    talk = holding()
    talk.lease(8, 1, 2)
    assert talk.weights(1, 1, 0) == ["load #0"], "of the step before, which others computed"
    assert talk.weights(1, 2, 0) == ["load #0", "perform 8"]


def test_a_lease_is_revoked_or_lost_before_its_weights_come() -> None:
    talk = holding()
    talk.lease(8, 1, 1)
    talk.lease(9, 1, 1)
    assert talk.order(pb.Revoke(job="a", lease=8)) == [], "it was not begun"
    assert talk.weights(1, 1, 0) == ["load #0", "perform 9"]
    assert talk.give(ev.Disconnected()) == ["drop lease 9"]
    talk.connect(epoch=2)
    assert talk.weights(1, 1, 0, 1, 2) == ["load #1", "load #2"]


def test_an_evaluation_is_begun_as_any_lease() -> None:
    talk = holding()
    assert talk.lease(8, 1, 1, phase=pb.EVALUATE) == []
    assert talk.weights(1, 1, 0) == ["load #0", "perform 8"]


# ---- how a lease ends ----


def test_a_revoked_lease_is_dropped() -> None:
    talk = holding()
    talk.lease(7)
    assert talk.order(pb.Revoke(job="a", lease=7)) == ["drop lease 7"]
    assert talk.order(pb.Revoke(job="a", lease=7)) == []
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0)))
    assert talk.sent() == []


def test_a_lease_that_fails_is_said_so() -> None:
    talk = holding()
    talk.lease(7)
    assert talk.give(ev.LeaseFailed(7, "out of memory")) == ["drop lease 7", "say unable: out of memory"]


def test_an_evaluation_is_over_when_it_is_told() -> None:
    talk = holding()
    assert talk.lease(7, phase=pb.EVALUATE) == ["perform 7"]
    assert talk.give(ev.LeaseEvaluated(7, (pb.BatchLoss(index=0, sum=1.0, tokens=2),))) == ["say evaluated"]
    assert talk.order(pb.Revoke(job="a", lease=7)) == []


# ---- checks ----


def test_a_check_tells_its_checksum_sends_nothing_and_is_forgotten() -> None:
    talk = holding()
    assert talk.lease(5, phase=pb.VERIFY) == ["perform 5"]
    assert talk.sent() == []
    checksum = pb.Checksum(micro_batch=3, crc32c=9)
    effects = talk.core.handle(ev.LeaseComputed(5, 0.0, 0, (checksum,)))
    assert [line(effect) for effect in effects] == ["drop lease 5", "say computed"]
    (said,) = [effect.body for effect in effects if isinstance(effect, ev.Say)]
    assert isinstance(said, pb.Computed)
    assert (said.lease, list(said.checksums)) == (5, [checksum])
    assert 5 not in talk.core.leases


def test_a_check_of_weights_that_are_gone_is_dropped() -> None:
    talk = holding()
    talk.lease(5, phase=pb.VERIFY)
