"""Runs of seeds of one kind of scenario, for the tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from tests.simulation.scenario import Scenario
from tests.simulation.simulated_cluster import SimulatedCluster


def run_seed(seed: int, scenario: Scenario) -> SimulatedCluster:
    """Run a cluster, which checks itself that its jobs end in the bits of an undisturbed run; fail with the seed."""
    cluster = SimulatedCluster(seed, scenario=scenario)
    try:
        cluster.run()
    except AssertionError as error:
        pytest.fail(f"seed {seed}: {error}")
    return cluster


def run_seeds(seeds: Iterable[int], make_scenario: Callable[[int], Scenario]) -> Counter[str]:
    """Run a cluster for each seed; return how often each fault was injected."""
    injected: Counter[str] = Counter()
    for seed in seeds:
        injected += run_seed(seed, make_scenario(seed)).injected
    return injected


def check_mutation(
    mutation: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    seeds: int,
    make_scenario: Callable[[int], Scenario],
    expected: type[Exception] = Exception,
) -> None:
    """Check that a defect is found by a seed.

    Args:
        mutation: puts the defect into the code.
        monkeypatch: takes it out after the test.
        seeds: number of seeds that may be tried.
        make_scenario: makes the scenario of a seed.
        expected: what a seed raises that finds it.
    """
    mutation(monkeypatch)
    for seed in range(seeds):
        try:
            SimulatedCluster(seed, scenario=make_scenario(seed)).run()
        except expected as error:
            assert not isinstance(error, TypeError), "the mutation no longer fits the core"
            print(f"seed {seed}: {type(error).__name__}: {error}")
            return
    pytest.fail(f"{mutation.__name__} passes {seeds} seeds")
