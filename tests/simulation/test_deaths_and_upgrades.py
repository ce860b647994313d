"""Whole simulated clusters whose workers crash by the job's fault, or are replaced by workers of other code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from aggregator.core.leasing import deaths
from aggregator.core.leasing.deaths import WorkerDeaths
from aggregator.core.running_job import RunningJob
from protos.jobs_pb2 import FAILED, SUCCEEDED
from tests.simulation.checked_runs import check_mutation
from tests.simulation.job_model import CRASH
from tests.simulation.scenario import Scenario
from tests.simulation.simulated_cluster import SimulatedCluster

SEEDS = 12


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_job_that_kills_its_workers_fails_and_the_next_one_runs(seed: int) -> None:
    cluster = SimulatedCluster(seed, scenario=Scenario.deadly(seed))
    cluster.run()
    first, second = (cluster.disk.jobs[f"job-{number}"].job for number in range(2))
    assert (first.state, second.state) == (FAILED, SUCCEEDED)
    assert CRASH in first.detail and "died 3 times" in first.detail


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_job_outlives_the_upgrade_of_all_its_workers(seed: int) -> None:
    cluster = SimulatedCluster(seed, scenario=Scenario.upgraded(seed))
    cluster.run()
    job = cluster.disk.jobs["job-0"].job
    assert job.state == SUCCEEDED or CRASH in job.detail
    assert [(each.before, each.after) for each in job.code_changes] in ([], [("old", "new")])


MOST_SEEDS = 160
"""Number of seeds after which a mutation counts as unnoticed; the first 80 find each today."""


def killing(seed: int) -> Scenario:
    """Return a scenario in which many workers are killed."""
    return replace(Scenario.hostile(seed), fault_kinds=("worker",))


def counts_every_signal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deaths, "FAULTS", range(64))


def counts_across_commits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerDeaths, "note_commit", lambda self: None)


def never_changes_code(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunningJob, "_change_code", lambda self, code, now: None)


@pytest.mark.parametrize(
    ("mutation", "scenario"),
    [
        pytest.param(counts_every_signal, killing, marks=pytest.mark.long),
        (counts_across_commits, killing),
        (never_changes_code, Scenario.upgraded),
    ],
)
def test_a_mutation_of_the_core_fails_a_seed(
    mutation: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[[int], Scenario],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_mutation(mutation, monkeypatch, MOST_SEEDS, scenario)
