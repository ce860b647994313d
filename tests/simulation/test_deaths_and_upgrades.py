"""Whole simulated clusters whose compute processes die, or whose workers are replaced by others of other code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from aggregator.core.leasing.deaths import ComputeDeaths
from aggregator.core.leasing.failures import Blame
from aggregator.core.running_job import RunningJob
from protos.jobs_pb2 import FAILED, SUCCEEDED
from tests.simulation.checked_runs import check_mutation, run_seed
from tests.simulation.job_model import CRASH
from tests.simulation.scenario import Scenario
from tests.simulation.simulated_cluster import SimulatedCluster

SEEDS = 6


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_job_that_kills_compute_processes_fails_and_the_next_one_runs(seed: int) -> None:
    cluster = SimulatedCluster(seed, scenario=Scenario.deadly(seed))
    cluster.run()
    first, second = (cluster.disk.jobs[f"job-{number}"].job for number in range(2))
    assert (first.state, second.state) == (FAILED, SUCCEEDED)
    assert CRASH in first.detail and "times while computing" in first.detail


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_job_outlives_the_upgrade_of_all_its_workers(seed: int) -> None:
    cluster = SimulatedCluster(seed, scenario=Scenario.upgraded(seed))
    cluster.run()
    job = cluster.disk.jobs["job-0"].job
    assert job.state == SUCCEEDED or CRASH in job.detail
    assert [(each.before, each.after) for each in job.code_changes] in ([], [("old", "new")])


MOST_SEEDS = 80
"""Number of seeds after which a mutation counts as unnoticed; the first 20 find each today."""


def killing(seed: int) -> Scenario:
    """Return a scenario in which many compute processes die."""
    return replace(Scenario.hostile(seed), compute_deaths=0.1)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_job_outlives_deaths_of_compute_processes_with_steps_between(seed: int) -> None:
    run_seed(seed, killing(seed))


def counts_across_commits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ComputeDeaths, "note_commit", lambda self: None)


def never_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ComputeDeaths, "add", lambda *_: Blame())


def never_builds_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunningJob, "build_again", lambda self, member, now: None)


def never_changes_code(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunningJob, "_change_code", lambda self, code, now: None)


@pytest.mark.parametrize(
    ("mutation", "scenario"),
    [
        (counts_across_commits, killing),
        (never_counts, Scenario.deadly),
        (never_builds_again, killing),
        (never_changes_code, Scenario.upgraded),
    ],
)
def test_a_mutation_of_the_core_fails_a_seed(
    mutation: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[[int], Scenario],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_mutation(mutation, monkeypatch, MOST_SEEDS, scenario)
