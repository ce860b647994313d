"""Whole simulated clusters whose queue is put back from earlier backups while jobs run.

Jobs and cancels that were acknowledged after the backup may be lost. Everything else holds: the same bits, epochs and
generations that rise, and no epoch that is obeyed of two aggregators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.simulation.mutations import RESTORE_MUTATIONS
from tests.simulation.scenario import Scenario
from tests.simulation.simulated_cluster import SimulatedCluster

QUICK_SEEDS, SEEDS = 20, 300
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
    injected: Counter[str] = Counter()
    for seed in seeds:
        cluster = SimulatedCluster(seed, scenario=Scenario.restored(seed))
        try:
            cluster.run()
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")
        injected += cluster.injected
    assert injected["queue restored"] > 2 * len(seeds)


@pytest.mark.parametrize("mutation", RESTORE_MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_mutation_fails_a_seed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    for seed in range(MUTATION_SEEDS):
        try:
            SimulatedCluster(seed, scenario=Scenario.restored(seed)).run()
        except AssertionError as error:
            print(f"seed {seed}: {error}")
            return
    pytest.fail(f"{mutation.__name__} passes {MUTATION_SEEDS} seeds")
