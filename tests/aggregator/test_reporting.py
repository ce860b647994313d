"""Tests of what the aggregator reports: waits that pass a timeout, and a disk that is almost full."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from aggregator.reporting import DiskWatch, WaitReporter
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


def test_a_disk_is_told_each_time_it_becomes_low(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, free_gb = 0.0, [100.0, 10.0, 9.0, 30.0, 10.0]

    def statvfs(path: Path) -> os.statvfs_result:
        blocks = [4096, 1024, 10**9, free_gb[0] * 10**6, free_gb[0] * 10**6, 0, 0, 0, 0, 255]  # of 1024 bytes
        return os.statvfs_result([int(each) for each in blocks])

    monkeypatch.setattr(os, "statvfs", statvfs)
    watch = DiskWatch(tmp_path, clock=lambda: now)
    told = []
    while free_gb:
        now += DiskWatch.CHECK_SECONDS
        told.append(watch.check())
        assert watch.check() is None, "it is looked at once a minute"
        free_gb.pop(0)
    assert [each is not None for each in told] == [False, True, False, False, True]
    assert "10.2 GB of 1.0 TB free" in str(told[1])
