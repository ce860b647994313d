"""The simulation detects bugs: its seeds fail for each mutation of a core.

Five mutations break the rules of history.py. On hostile seeds from 0 on, a single seed detects each of them: a step
committed twice (`commits_twice`) or too early (`commits_before_all_chunks_are_staged`), a generation that does not rise
(`keeps_the_generation`), a micro-batch counted twice (`counts_duplicates`), and one that no worker computes
(`forgets_orphans`). Tests print the seed of the others. The rarest, `leaves_leases_with_silent_workers`, took 136 seeds
with all faults, and 3 with only the faults that reveal it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count, islice

import pytest

from tests.simulation.checked_runs import check_mutation
from tests.simulation.job_model import SimulationFailed
from tests.simulation.mutations import (
    FAULTS_THAT_SHOW,
    LIE_MUTATIONS,
    MUTATIONS,
    skips_a_step_that_must_stop_the_job,
)
from tests.simulation.scenario import Scenario
from tests.simulation.simulated_cluster import SimulatedCluster

MUTATION_SEEDS = 300
"""Number of seeds to try. The rarest of the other mutations fails one seed of a hundred."""
RARE = {
    "counts_duplicates",
    "drops_a_commit_while_evaluating",
    "never_notices_silence",
    "reports_weights_that_are_still_loading",
}
"""Mutations that take many seeds, and so are left to `make test-all`."""
RAREST = {"forgets_orphans"}
"""Mutations that take so many that they are left to `make test-slow`."""


def _marks(mutation: Callable[[pytest.MonkeyPatch], None]) -> Sequence[pytest.MarkDecorator]:
    marks = [pytest.mark.long] if mutation.__name__ in RARE | RAREST else []
    return [*marks, pytest.mark.slow] if mutation.__name__ in RAREST else marks


@pytest.mark.parametrize(
    ("mutation", "fault_kinds"),
    [
        *(
            pytest.param(mutation, (), marks=_marks(mutation))
            for mutation in MUTATIONS
            if mutation not in FAULTS_THAT_SHOW
        ),
        *(pytest.param(*shown, marks=pytest.mark.long) for shown in FAULTS_THAT_SHOW.items()),
        *(pytest.param(mutation, (), marks=pytest.mark.slow) for mutation in FAULTS_THAT_SHOW),
    ],
    ids=lambda each: getattr(each, "__name__", ",".join(each) if isinstance(each, tuple) else None),
)
def test_a_mutation_of_a_core_fails_a_seed(
    mutation: Callable[[pytest.MonkeyPatch], None],
    fault_kinds: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_mutation(
        mutation,
        monkeypatch,
        MUTATION_SEEDS,
        lambda seed: replace(Scenario.hostile(seed), fault_kinds=fault_kinds),
    )


def test_a_step_that_must_stop_a_job_is_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    skips_a_step_that_must_stop_the_job(monkeypatch)
    worlds = (
        cluster
        for cluster in map(SimulatedCluster, count())
        if any(
            "on_non_finite" in job.expected_failure and job.cancelled_seconds is None
            for job in cluster.scenario.jobs
        )
    )
    with pytest.raises(SimulationFailed, match="on_non_finite: stop"):
        for cluster in islice(worlds, 10):
            cluster.run()


@pytest.mark.long
@pytest.mark.parametrize("mutation", LIE_MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_mutation_lets_a_lie_into_the_weights(
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
