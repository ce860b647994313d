"""A device hangs while its worker's process lives: the worker is named with what it does, and others do its work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster.bits import Bits, bits, deep_config, spec_of, split_config
from tests.support.cluster.daemon import tiermesh
from tests.support.cluster.harness import Cluster

HEARTBEAT_SECONDS = 0.5
STALL = ("--timeout", f"stall={37 * HEARTBEAT_SECONDS:g}")
"""Shortest limit that the order of timeouts allows."""
STEPS = 6
LOADS, COMPUTES = "worker.load=hang@4", "worker.pass=hang@4"


class FirstWorkerHangs:
    """Failpoints of a cluster whose first worker hangs."""

    def __init__(self, at: str) -> None:
        self._left = [at]

    def __call__(self, role: str) -> str:
        return self._left.pop() if role == "worker" and self._left else ""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Bits:
    folder = tmp_path_factory.mktemp("whole")
    with Cluster(folder, workers=1) as cluster:
        return bits(cluster.finish(cluster.submit(make_spec(folder, corpus, ()))))


def make_spec(folder: Path, corpus: Path, blocks: tuple[int, ...]) -> str:
    config = deep_config(corpus, 2, project_name="hangs", max_steps=STEPS)
    return spec_of(folder, split_config(config, blocks))


@pytest.mark.long
@pytest.mark.parametrize(
    ("blocks", "at", "does"),
    [
        pytest.param((), LOADS, "loads weights", id="load"),
        pytest.param((1, 1), LOADS, "loads weights", id="load-in-row"),
        pytest.param((1, 1), COMPUTES, "computes gradients", id="pass-in-row"),
    ],
)
def test_the_worker_is_named_and_others_do_its_work(
    tmp_path: Path, corpus: Path, expected: Bits, blocks: tuple[int, ...], at: str, does: str
) -> None:
    with Cluster(
        tmp_path,
        heartbeat_seconds=HEARTBEAT_SECONDS,
        aggregator_options=STALL,
        failpoints=FirstWorkerHangs(at),
    ) as cluster:
        for _ in range(len(blocks) + 1 if blocks else 2):
            cluster.start_worker()
        job = cluster.submit(make_spec(tmp_path, corpus, blocks))
        ended = cluster.finish(job)
        assert (bits(ended), ended.generation) == (expected, 1)
        log = tiermesh("logs", job, "--aggregator", cluster.to_aggregator.address).stdout
        named = [line for line in log.splitlines() if "its device" in line]
        assert len(named) == 1 and f"worker worker-1: its device {does}, and has not got on for" in named[0]
        if blocks:
            assert "a spare replaces worker worker-1" in log
        assert log.count("a spare replaces") <= 1
