"""Fault × job RPC: a call gives the right answer or one line of error, and a job is queued at most once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from protos import jobs_pb2 as jobs
from services.errors import TiermeshError
from services.jobs.client import JobsClient
from services.jobs.target import AggregatorTarget
from services.transport.security import Security
from tests.support.anything import is_one_line
from tests.support.cluster.daemon import LIMIT_SECONDS, eventually
from tests.support.cluster.harness import ENDED
from tests.support.cluster.rpc_proxy import Fault, ProxiedCluster

ENDING = ("before", "midway", "after", "cancelled")
PASSING = ("slow", "duplicated")
DAMAGING = ("truncated", "bit-flipped")
ANSWER_SECONDS = 30.0
"""Limit of an answer. The slowest fault takes one second."""

Call = Callable[[JobsClient, str, str], Awaitable[Any]]


async def _all_of(events: Any) -> list[Any]:
    return [each async for each in events]


CALLS: dict[str, Call] = {
    "Submit": lambda client, _, spec: client.submit("named", spec),
    "List": lambda client, *_: client.jobs(),
    "Get": lambda client, job, _: client.job(job),
    "Spec": lambda client, job, _: client.spec_json(job),
    "Cancel": lambda client, job, _: client.cancel(job),
    "Trust": lambda client, job, _: client.trust(job, "w1"),
    "Pause": lambda client, job, _: client.pause(job),
    "Resume": lambda client, job, _: client.resume(job),
    "SetPriority": lambda client, job, _: client.set_priority(job, -1),
    "Watch": lambda client, job, _: _all_of(client.watch(job)),
    "Logs": lambda client, job, _: _all_of(client.logs(jobs.LogsRequest(job=job))),
    "Metrics": lambda client, job, _: _all_of(client.metrics(jobs.MetricsRequest(job=job))),
    "Status": lambda client, *_: client.status(),
}
STREAMS = ("Watch", "Logs", "Metrics")
REFUSED = ("Trust", "Pause", "Resume", "SetPriority")
"""Methods that are refused for a job that has ended."""
EMPTY = ("List", "Status")
"""Methods whose requests have no bytes."""
MATRIX = [
    (method, direction, kind)
    for method in CALLS
    for direction in ("up", "down")
    for kind in (*ENDING, *PASSING, *DAMAGING)
    if (kind, direction) != ("before", "down")  # Before the first message a fault has no direction.
    and not (method in EMPTY and direction == "up" and kind in DAMAGING)
    # The job has ended, so these are refused: the answer is a status without a message.
    and not (method in REFUSED and direction == "down")
    # gRPC itself limits calls with one message to one.
    and (kind != "duplicated" or (method in STREAMS and direction == "down"))
]
SHORT = [
    *random.Random(5).sample([each for each in MATRIX if each[2] not in PASSING], 16),
    ("Watch", "down", "duplicated"),
    ("Submit", "up", "bit-flipped"),
    ("Submit", "down", "after"),
    ("Get", "down", "truncated"),
    ("Get", "up", "slow"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedCluster]:
    """Start a cluster of only an aggregator, so that no job makes progress."""
    with ProxiedCluster(tmp_path_factory.mktemp("calls")) as running:
        yield running


def ask(address: str, call: Call, job: str, spec: str) -> Any:
    """Return the answer, or the error that a command would show."""

    async def scenario() -> Any:
        async with JobsClient(AggregatorTarget(address, Security(), ANSWER_SECONDS)) as client:
            return await call(client, job, spec)

    try:
        return asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
    except TiermeshError as error:
        return error


def known(cluster: ProxiedCluster) -> list[str]:
    """Return the ids of all jobs, read without the proxy."""
    return [each.id for each in ask(cluster.aggregator.address, CALLS["List"], "", "")]


@pytest.mark.parametrize(
    ("method", "direction", "kind"),
    [
        pytest.param(*each, marks=() if each in SHORT else pytest.mark.slow, id="-".join(each))
        for each in MATRIX
    ],
)
def test_a_fault_gives_an_answer_or_one_line_of_error(
    cluster: ProxiedCluster, short_spec: str, method: str, direction: str, kind: str
) -> None:
    direct = cluster.aggregator.address
    job = ask(direct, CALLS["Submit"], "", short_spec).id
    if method != "Cancel":  # A finished job's stream of events has ended and no longer changes.
        ask(direct, CALLS["Cancel"], job, "")
    before = known(cluster)
    undisturbed = None if method in ("Submit", "Cancel", "List") else ask(direct, CALLS[method], job, "")
    proxy: Any = cluster.to_aggregator
    least_bytes = 1 if kind in DAMAGING else 0
    proxy.strike(Fault(f"/tiermesh.Jobs/{method}", direction, kind, least_bytes=least_bytes))
    outcome = ask(proxy.address, CALLS[method], job, short_spec)
    assert proxy.struck.is_set(), "the fault never happened"

    failed = isinstance(outcome, TiermeshError)
    if failed:
        assert is_one_line(outcome)
        assert "Unexpected" not in str(outcome), "grpcio's words"
    assert failed or kind not in ENDING
    refused = isinstance(undisturbed, TiermeshError)  # Nobody says anything of a job that has ended.
    assert refused or not (failed and kind in PASSING), outcome
    if direction == "up" and kind in DAMAGING:
        assert failed, outcome
    if undisturbed is not None and kind in PASSING:
        assert _plain(outcome) == _plain(undisturbed)
    new = known(cluster)[len(before) :]
    assert len(new) <= (method == "Submit")
    assert len(new) == 1 or method != "Submit" or failed

    if method == "Cancel" and failed:
        ended = ask(proxy.address, CALLS["Get"], job, "")
        if ended.state != jobs.CANCELLED:  # The call did not reach the aggregator.
            assert ask(proxy.address, CALLS["Cancel"], job, "").state == jobs.CANCELLED
    assert ask(proxy.address, CALLS["Get"], job, "").id == job
    eventually(lambda: _idle(direct), "all jobs to be over")


def _idle(address: str) -> bool:
    """Return whether all jobs have ended, and cancel the others, also one whose submission arrived late."""
    left = [each.id for each in ask(address, CALLS["List"], "", "") if each.state not in ENDED]
    for job in left:
        ask(address, CALLS["Cancel"], job, "")
    return not left


def _plain(answer: Any) -> list[str]:
    """Return the different texts of an answer, without times."""
    messages = answer if isinstance(answer, list) else [answer]
    texts: list[str] = []
    for each in messages:
        text = "" if isinstance(each, jobs.ClusterStatus) else str(getattr(each, "job", each))
        if isinstance(each, jobs.LogLine):
            text = each.text
        if text not in texts:
            texts.append(text)
    return texts
