"""Simulated clusters in which several jobs want the same few workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.simulation import several_jobs_mutations as mutations
from tests.simulation.checked_runs import check_mutation, run_seeds
from tests.simulation.contended import contended
from tests.simulation.scenario import Scenario

QUICK_SEEDS, SEEDS = 5, 34
MUTATION_SEEDS = 300
TAKE_LONG = (
    mutations.takes_reports_of_other_jobs,  # 60 seeds
    mutations.forgets_pauses_at_a_restart,
    mutations.forgets_exclusions_in_other_jobs,
    mutations.ignores_priorities,
    mutations.never_gives_reserved_workers,
    mutations.stops_jobs_that_may_not_be_stopped,
    mutations.runs_any_number_of_jobs,
)
"""Mutations that take several seconds, and so are left to `make test-all`."""


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(QUICK_SEEDS), id="usual"),
        pytest.param(range(QUICK_SEEDS, SEEDS), id="others", marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(900)
def test_jobs_that_want_the_same_workers_end_in_the_bits_of_each_alone(seeds: range) -> None:
    injected = run_seeds(seeds, contended)
    assert injected["pause of a job"] and injected["change of a priority"] and injected["job preempted"]


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(each, marks=pytest.mark.long if each in TAKE_LONG else ())
        for each in mutations.SEVERAL_JOBS_MUTATIONS
    ],
    ids=lambda mutation: mutation.__name__,
)
def test_a_mutation_of_what_keeps_jobs_apart_fails_a_seed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_scenario(seed: int) -> Scenario:
        if mutation is not mutations.forgets_pauses_at_a_restart:
            return contended(seed)
        return replace(contended(seed), fault_kinds=("aggregator",), faults=12)

    check_mutation(mutation, monkeypatch, MUTATION_SEEDS, make_scenario)
