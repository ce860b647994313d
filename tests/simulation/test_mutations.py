"""The simulation bites: seeds of it find each mutation that is made in a core on purpose.

What holds of every history was tried by them, on hostile seeds from 0 on: a step that is committed
twice (`commits_twice`), a generation that does not rise (`keeps_the_generation`), a micro-batch that is counted
twice (`counts_duplicates`) and one that nobody computes, so that the job does not end (`forgets_orphans`) each took one
seed; of the others, which print theirs, the rarest (`leaves_leases_with_silent_workers`) took 136, and 3 with those
faults alone that show it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count, islice

import pytest

from tests.simulation.job_model import SimulationFailed
from tests.simulation.mutations import (
    FAULTS_THAT_SHOW,
    LIE_MUTATIONS,
    MUTATIONS,
    skips_a_step_that_is_to_stop_the_job,
)
from tests.simulation.scenario import Scenario
from tests.simulation.simulated_cluster import SimulatedCluster

MUTATION_SEEDS = 300
"""The rarest of the mistakes shows in one seed of a hundred."""


@pytest.mark.parametrize(
    ("mutation", "fault_kinds"),
    [
        *((mutation, FAULTS_THAT_SHOW.get(mutation, ())) for mutation in MUTATIONS),
        *(pytest.param(mutation, (), marks=pytest.mark.slow) for mutation in FAULTS_THAT_SHOW),
    ],
    ids=lambda each: getattr(each, "__name__", ",".join(each) if isinstance(each, tuple) else None),
)
def test_a_mistake_in_a_core_fails_a_seed(
    mutation: Callable[[pytest.MonkeyPatch], None],
    fault_kinds: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutation(monkeypatch)
    for seed in range(MUTATION_SEEDS):
        try:
            SimulatedCluster(seed, scenario=replace(Scenario.hostile(seed), fault_kinds=fault_kinds)).run()
        except Exception as error:
            assert not isinstance(error, TypeError), "the mutation does not fit the core any more"
            print(f"seed {seed}: {type(error).__name__}: {error}")
            return
    pytest.fail(f"{mutation.__name__} passes {MUTATION_SEEDS} seeds")


def test_a_step_that_is_to_stop_a_job_is_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    skips_a_step_that_is_to_stop_the_job(monkeypatch)
    worlds = (
        cluster
        for cluster in map(SimulatedCluster, count())
        if any(
            "on_non_finite" in job.expected_failure and job.cancelled_seconds is None
            for job in cluster.scenario.jobs
        )
    )
    with pytest.raises(SimulationFailed, match="of a job that is to stop"):
        for cluster in islice(worlds, 10):
            cluster.run()


@pytest.mark.parametrize("mutation", LIE_MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_mistake_lets_a_lie_into_the_weights(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    for seed in range(100):
        try:
            SimulatedCluster(seed, scenario=Scenario.lying(seed)).run()
        except SimulationFailed as error:
            print(f"seed {seed}: {error}")
            return
    pytest.fail(f"{mutation.__name__} passes 100 seeds")
