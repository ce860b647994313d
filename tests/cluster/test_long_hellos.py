"""Hellos whose texts are at, below and above their bounds: taken or refused by name, with and without shards."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from protos import jobs_pb2 as jobs
from tests.support.cluster.daemon import LIMIT_SECONDS, eventually
from tests.support.cluster.harness import Cluster
from tests.support.cluster.stock_peers import StockWorker

INVALID, PRECONDITION = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION

LONG_HELLOS = {"name": 64, "incarnation": 128, "layout_hash": 128, "cluster": 128, "role": 32}
"""Texts of Hello, and the longest that is not refused for its length alone, in bytes."""


@pytest.mark.parametrize(
    ("tiers", "shards"),
    [(2, 2), pytest.param(2, 0, marks=pytest.mark.long), pytest.param(3, 0, marks=pytest.mark.long)],
)
def test_a_hello_with_any_text_at_its_bound_is_taken_or_refused_by_name(
    tmp_path: Path, tiers: int, shards: int
) -> None:
    with Cluster(tmp_path / "cluster", tiers=tiers, shards=shards, workers=0) as cluster:
        eventually(lambda: all(not each.detail for each in cluster.status().shards), "the shards")
        for field, longest in LONG_HELLOS.items():
            for length in (longest - 1, longest, longest + 1, 5000, 100_000):
                with StockWorker(cluster.aggregator.address, "rogue") as rogue:
                    stream = rogue.attend(rogue.hello(**{field: "x" * length}))
                    taken = stream.receive() is not None
                    assert cluster.stub.Status(jobs.StatusRequest(), timeout=LIMIT_SECONDS).leader
                    if not taken:
                        code, line = stream.status()
                        assert code in (INVALID, PRECONDITION), (field, length, code, line)
                        assert "rogue" in line or field in ("name", "role"), line
                        assert len(line) <= 300 and line.isprintable() and "internal error" not in line
                    assert taken == (length <= longest and field in ("name", "incarnation", "layout_hash"))
        assert "internal error" not in cluster.aggregator.log_text()
        assert "Traceback" not in cluster.aggregator.log_text()
