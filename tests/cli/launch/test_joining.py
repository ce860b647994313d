"""The wait until all daemons have joined: who is named if one has not."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from cli.launch.joining import wait_until_joined
from cli.launch.plan import LaunchPlan, Rank, Role
from protos import jobs_pb2
from services.errors import Failed
from services.jobs.client import JobsClient
from services.jobs.connection import Unreachable


def _rank(number: int, role: Role, host: str) -> Rank:
    return Rank(number, role, host, f"rank{number}", number, {}, "")


PLAN = LaunchPlan(
    (
        _rank(0, "worker", "a"),
        _rank(1, "worker", "b"),
        _rank(2, "aggregator", "c"),
        _rank(3, "optimizer", "d"),
        _rank(4, "web", "c"),
    ),
    tiers=3,
)


class FakeAggregator:
    """Aggregator whose cluster has other members at each call, and which stays with the last ones."""

    address = "c:7070"

    def __init__(self, *memberships: set[str]) -> None:
        self._memberships = list(memberships)

    async def status(self) -> jobs_pb2.ClusterStatus:
        members = self._memberships.pop(0) if len(self._memberships) > 1 else self._memberships[0]
        if not members:
            raise Unreachable("no answer")
        return jobs_pb2.ClusterStatus(
            leader="rank2",
            optimizer="rank3" if "rank3" in members else "d:7071 does not answer",
            workers=[jobs_pb2.Member(name=name) for name in members & {"rank0", "rank1"}],
        )


ALL = {"rank0", "rank1", "rank2", "rank3"}


def wait(*memberships: set[str], limit_seconds: float = 30.0) -> None:
    client = cast(JobsClient, FakeAggregator(*memberships))
    asyncio.run(wait_until_joined(client, PLAN, limit_seconds))


def test_it_ends_when_all_have_joined() -> None:
    wait({"rank2"}, {"rank2", "rank3"}, ALL)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (
            ALL - {"rank1"},
            "host b: rank 1, worker: has not joined aggregator c:7070 within 0.2 s (not connected)",
        ),
        (ALL - {"rank3"}, "host d: rank 3, optimizer: .* (d:7071 does not answer); see its log"),
        ({"rank2"}, "host d: rank 3, optimizer: "),
        (set(), "host c: rank 2, aggregator: .* (no answer)"),
    ],
)
def test_the_daemon_that_the_others_wait_for_is_named(members: set[str], said: str) -> None:
    with pytest.raises(Failed, match=said.replace("(", r"\(").replace(")", r"\)")) as raised:
        wait(members, limit_seconds=0.2)
    assert len(str(raised.value)) <= 300
