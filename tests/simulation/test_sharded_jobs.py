"""Simulated clusters with shards: they die, freeze, are cut off and are slow, while chunks come to them in pieces."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.checked_runs import check_mutation, run_seeds
from tests.simulation.scenario import Scenario
from tests.simulation.shard_mutations import (
    SHARD_MUTATIONS,
    carries_out_repeated_orders,
    counts_a_piece_twice,
    keeps_no_chunk_that_is_put_together,
)
from tests.simulation.simulated_cluster import SimulatedCluster

QUICK_SEEDS, SEEDS = 1, 11
"""Usual seeds have shards too, see `SHARDED`."""
MUTATION_SEEDS = 40
SOON_FOUND = (counts_a_piece_twice, keeps_no_chunk_that_is_put_together, carries_out_repeated_orders)


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(QUICK_SEEDS), id="usual"),
        pytest.param(range(QUICK_SEEDS, SEEDS), id="others", marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(900)
def test_pieces_that_come_to_shards_give_the_bits_of_an_undisturbed_run(seeds: range) -> None:
    injected = run_seeds(seeds, Scenario.sharded)
    if len(seeds) > QUICK_SEEDS:
        assert injected["shard dies"] and injected["worker dies"] and injected["second aggregator"]


@pytest.mark.long
@pytest.mark.parametrize(
    "scenario",
    [Scenario.lying_sharded, Scenario.restored, Scenario.with_checks, Scenario.continued],
    ids=lambda each: each.__name__,
)
@pytest.mark.timeout(900)
def test_shards_beside_all_else(scenario: Callable[[int], Scenario]) -> None:
    """Lying stages, restored queues, checks of links and continued jobs."""
    sharded = 0
    for seed in range(12):
        usual = scenario(seed)
        if usual.tiers == 2:
            sharded += 1
            SimulatedCluster(seed, scenario=usual.with_shards(seed)).run()
    assert sharded


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(each, marks=() if each in SOON_FOUND else pytest.mark.long, id=each.__name__)
        for each in SHARD_MUTATIONS
    ],
)
def test_a_mutation_fails_a_seed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_mutation(mutation, monkeypatch, MUTATION_SEEDS, Scenario.sharded)
