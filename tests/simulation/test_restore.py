"""Whole simulated clusters whose queue is put back from earlier backups while jobs run.

Jobs and cancels that were acknowledged after the backup may be lost. Everything else holds: the same bits, epochs and
generations that rise, and no epoch that is obeyed of two aggregators.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.checked_runs import check_mutation, run_seeds
from tests.simulation.mutations import RESTORE_MUTATIONS
from tests.simulation.scenario import Scenario

QUICK_SEEDS, SEEDS = 4, 17
MUTATION_SEEDS = 60
"""Number of seeds after which a mutation counts as unnoticed."""


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(QUICK_SEEDS), id="usual"),
        pytest.param(range(QUICK_SEEDS, SEEDS), id="others", marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(900)
def test_clusters_end_in_the_same_bits_after_restores(seeds: range) -> None:
    injected = run_seeds(seeds, Scenario.restored)
    assert injected["queue restored"] > 2 * len(seeds)


@pytest.mark.parametrize("mutation", RESTORE_MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_mutation_fails_a_seed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_mutation(mutation, monkeypatch, MUTATION_SEEDS, Scenario.restored, AssertionError)
