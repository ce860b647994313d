"""Tests of what the aggregator reports: a wait that passes a timeout is logged, with a chunk only if one is owed."""

from __future__ import annotations

from unittest.mock import create_autospec

import pytest

from aggregator.reporting import WaitReporter
from protos.jobs_pb2 import Wait
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.timeouts import STANDARD_TIMEOUTS


@pytest.mark.parametrize(
    ("owed", "chunk"), [({}, ""), ({"bucket": 0}, ", chunk 0"), ({"bucket": 3}, ", chunk 3")]
)
def test_a_long_wait_names_the_chunk_that_is_owed(
    owed: dict[str, int], chunk: str, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = WaitReporter(create_autospec(AggregatorMetrics, instance=True), STANDARD_TIMEOUTS)
    seconds = STANDARD_TIMEOUTS.silent + 0.1
    wait = Wait(role="worker", peer="w1", job="a", what="initial weights", seconds=seconds, **owed)
    reporter.report([wait])
    reporter.report([wait])
    (line,) = caplog.messages
    expected = (
        f"waiting for worker w1: initial weights{chunk}, for {seconds:.1f} s (longer than timeout silent)"
    )
    assert line == expected


def test_the_same_wait_of_two_jobs_is_logged_for_each(caplog: pytest.LogCaptureFixture) -> None:
    reporter = WaitReporter(create_autospec(AggregatorMetrics, instance=True), STANDARD_TIMEOUTS)
    owed = {
        "role": "optimizer",
        "peer": "opt",
        "what": "its status",
        "seconds": STANDARD_TIMEOUTS.silent + 0.1,
    }
    reporter.report([Wait(job="a", **owed), Wait(job="b", **owed)])
    assert [record.__dict__["job"] for record in caplog.records] == ["a", "b"]
