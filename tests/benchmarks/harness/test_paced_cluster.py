"""What a cluster of paced workers reads from the records of their passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness import paced_cluster
from benchmarks.harness.paced_cluster import PacedCluster


def test_what_passes_take_longer_than_they_should_is_idle_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paced_cluster, "BUILD", tmp_path)
    cluster = PacedCluster("bench", stages=2, micro_batches=1, pause_seconds=0.25)
    records = tmp_path / "bench" / "records"
    records.mkdir(parents=True)
    # Each stage has 4 blocks: 1 s forward and 2 s backward. The second one's passes take 0.5 s longer in all.
    (records / "worker-1-7").write_text("4 0 0 0 9 10\n5 0 0 0 100 101\n5 0 1 0 104.5 106.5\n6 0 0")
    (records / "worker-2-8").write_text("5 4 0 0 101 102.25\n5 4 1 0 102.25 104.5\n")
    assert cluster.busy_seconds == 6
    assert len(cluster.passes(5)) == 4 and len(cluster.passes(6)) == 0
    assert cluster.bubble(5) == pytest.approx(1 - 6 / (2 * 6.5))
