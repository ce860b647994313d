"""Whole simulated clusters in which people check meshes and links before, between and beside jobs.

A check changes no bits, delays jobs only as long as it lasts, and always ends, unless its aggregator dies.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.checked_runs import check_mutation, run_seeds
from tests.simulation.mutations import CHECK_MUTATIONS
from tests.simulation.scenario import Scenario

QUICK_SEEDS, SEEDS = 5, 35
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
def test_clusters_end_in_the_same_bits_with_checks(seeds: range) -> None:
    injected = run_seeds(seeds, Scenario.with_checks)
    assert injected["check of meshes and links"] > 3 * len(seeds)
    assert injected["aggregator dies"] and injected["worker dies"] and injected["link cut"]


@pytest.mark.parametrize("mutation", CHECK_MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_mutation_fails_a_seed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_mutation(mutation, monkeypatch, MUTATION_SEEDS, Scenario.with_checks, AssertionError)
