"""Simulated clusters in which a job goes on where another one has ended, while processes die, lie and are upgraded."""

from __future__ import annotations

from collections import Counter

import pytest

from optimizer.core.events import Loaded
from optimizer.core.job_core import JobCore
from protos.jobs_pb2 import FAILED, SUCCEEDED
from tests.simulation.checked_runs import run_seed
from tests.simulation.scenario import Scenario
from tests.simulation.simulated_cluster import SimulatedCluster

QUICK_SEEDS, SEEDS = 8, 45


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(QUICK_SEEDS), id="usual"),
        pytest.param(range(QUICK_SEEDS, SEEDS), id="others", marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(900)
def test_a_job_that_goes_on_ends_in_the_bits_of_an_undisturbed_run(seeds: range) -> None:
    injected: Counter[str] = Counter()
    ended = 0
    for seed in seeds:
        cluster = run_seed(seed, Scenario.continued(seed))
        injected += cluster.injected
        second = cluster.jobs["job-1"]
        written = cluster.disk.checkpoints[second.id]
        if cluster.disk.jobs[second.id].job.state == SUCCEEDED:
            ended += 1
            first = cluster.disk.jobs["job-0"].job
            assert second.first_step > 0 or first.state == FAILED, "it has its first checkpoint alone"
            assert all(each.step >= second.first_step for each, _ in written), "no weights were made"
    assert ended > len(seeds) // 2
    assert injected


def test_a_start_whose_checkpoint_is_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the checks of the simulation see a job that makes its own weights instead."""
    loaded = JobCore.loaded

    def forgets(self: JobCore, event: Loaded) -> None:
        loaded(self, Loaded(event.job, event.plan, event.generation))

    monkeypatch.setattr(JobCore, "loaded", forgets)
    with pytest.raises(AssertionError):
        for seed in range(10):
            SimulatedCluster(seed, scenario=Scenario.continued(seed)).run()
