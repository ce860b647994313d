"""What a worker believes of an aggregator's Welcome."""

from __future__ import annotations

import pytest

from protos import cluster_pb2 as pb
from services.streams import LinkClosed
from worker.service import ladder_of


def test_the_timeouts_follow_from_the_cluster_s_heartbeat() -> None:
    assert ladder_of(pb.Welcome(heartbeat_seconds=2.0)).silent == 5.0


@pytest.mark.parametrize("heartbeat", [0.0, -5.0, float("nan")])
def test_a_heartbeat_that_would_have_it_spin_ends_the_link(heartbeat: float) -> None:
    with pytest.raises(LinkClosed, match=r"its Welcome names a heartbeat of .* expected more than 0"):
        ladder_of(pb.Welcome(heartbeat_seconds=heartbeat))
