"""A recorded run of real daemons gives the same effects when its inputs are replayed through the cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.core.aggregator import AggregatorCore
from optimizer.core.optimizer import OptimizerCore
from services.runtime.recording import ReplayDiffers, replay
from tests.simulation.history import Covered, InvalidHistory, check
from tests.simulation.recorded import history_of
from tests.support.cluster.bits import STEPS
from tests.support.cluster.harness import Cluster


@pytest.mark.long
@pytest.mark.parametrize("tiers", [2, 3])
def test_a_recorded_run_replays_to_the_same_effects(tmp_path: Path, tiers: int, gpt_spec: str) -> None:
    with Cluster(tmp_path, tiers=tiers, workers=2, recorded=True) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, 2)
        cluster.workers[0].kill()  # so that a lease is revoked and granted to another worker
        cluster.finish(job)
    aggregator_record = tmp_path / "aggregator.record"
    optimizer_record = tmp_path / ("optimizer.record" if tiers == 3 else "aggregator.record.optimizer")
    assert replay(aggregator_record, AggregatorCore) > 60
    assert replay(optimizer_record, OptimizerCore) > 50

    history = list(history_of(aggregator_record, optimizer_record))
    assert check(history) == STEPS, "each step once, of each micro-batch once"
    history.remove(next(event for event in history if isinstance(event, Covered)))
    with pytest.raises(InvalidHistory, match="lacks chunks"):
        check(history)

    lines = optimizer_record.read_text().splitlines(keepends=True)
    staged = next(number for number, line in enumerate(lines) if "StageChunks" in line)
    optimizer_record.write_text("".join(lines[:staged] + lines[staged + 1 :]))
    with pytest.raises(ReplayDiffers, match="line"):
        replay(optimizer_record, OptimizerCore)
