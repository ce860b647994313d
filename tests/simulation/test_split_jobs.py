"""Simulated clusters whose jobs have pipelines: rows of workers that die, freeze, part and come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from aggregator.core.verification import answers
from aggregator.core.verification.answers import Answer
from aggregator.core.verification.opinions import agree
from services.pipeline.split import StageRun
from services.tensors.layout_parts import check_cover
from tests.simulation.checked_runs import check_mutation, run_seeds
from tests.simulation.job_model import SimulationFailed
from tests.simulation.mutations import (
    HANG_MUTATIONS,
    SPLIT_MUTATIONS,
    drops_a_piece,
    names_workers_that_wait,
    puts_chunks_together_without_all_pieces,
    tries_broken_links_at_once,
)
from tests.simulation.scenario import Scenario
from tests.simulation.simulated_cluster import SimulatedCluster

QUICK_SEEDS, SEEDS = 2, 12
"""Usual seeds have jobs with pipelines too, see `SPLIT_JOBS`."""
MUTATION_SEEDS = 60
SOON_FOUND = (drops_a_piece, puts_chunks_together_without_all_pieces)


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(QUICK_SEEDS), id="usual"),
        pytest.param(range(QUICK_SEEDS, SEEDS), id="others", marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(900)
def test_split_jobs_end_in_the_bits_of_an_undisturbed_run(seeds: range) -> None:
    injected = run_seeds(seeds, Scenario.split)
    if len(seeds) > QUICK_SEEDS:
        assert injected["worker dies"] and injected["link of a row cut"] and injected["neighbour lost"]


@pytest.mark.long
def test_workers_that_are_parted_for_long_are_not_left_in_a_row() -> None:
    """Part workers alone, with spares: the job must not wait until they reach each other."""
    lost = 0
    for seed in range(20):
        scenario = Scenario.split(seed)
        scenario = replace(scenario, workers=scenario.workers + 3, faults=8, fault_kinds=("parted",))
        cluster = SimulatedCluster(seed, scenario=scenario)
        cluster.run()
        lost += cluster.injected["neighbour lost"]
    assert lost


MOST_LOST = 100
"""Most neighbours that workers may report lost while they are parted. Tried at once, it would be more than 200."""


def run_parted(seeds: range) -> list[int]:
    """Run seeds in which no worker reaches another one for long; return how many reported a lost neighbour, by seed."""
    found = []
    for seed in seeds:
        cluster = SimulatedCluster(seed, scenario=Scenario.parted(seed))
        cluster.run()
        found.append(cluster.injected["neighbour lost"])
    return found


@pytest.mark.parametrize(
    "seeds", [pytest.param(range(1, 2), id="usual"), pytest.param(range(2, 7), marks=pytest.mark.long)]
)
def test_links_that_stay_broken_are_tried_ever_more_rarely_until_they_heal(seeds: range) -> None:
    lost = run_parted(seeds)
    assert 0 < min(lost) <= max(lost) < MOST_LOST, lost


@pytest.mark.long
def test_links_that_are_tried_at_once_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tries_broken_links_at_once(monkeypatch)
    assert max(run_parted(range(1, 2))) > MOST_LOST


def test_the_parts_of_a_split_cover_the_layout_once() -> None:
    for seed in range(50):
        for job in Scenario.split(seed).jobs:
            pipeline = job.pipeline
            assert pipeline is not None
            parts = [pipeline.gradients_of(StageRun(stage, 1)) for stage in range(pipeline.stages)]
            assert check_cover(parts, job.elements) is None


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(each, marks=() if each in SOON_FOUND else pytest.mark.long, id=each.__name__)
        for each in SPLIT_MUTATIONS
    ],
)
def test_a_mutation_fails_a_seed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_mutation(mutation, monkeypatch, MUTATION_SEEDS, Scenario.split)


# ---- devices that hang ----


@pytest.mark.parametrize(
    "seeds", [pytest.param(range(6, 7), id="usual"), pytest.param(range(6), marks=pytest.mark.long)]
)
def test_a_stage_whose_device_hangs_is_named_within_one_stall(seeds: range) -> None:
    """The checks are those of `Faults`: no other worker is named, and none that hangs is missed."""
    named = 0
    for seed in seeds:
        cluster = SimulatedCluster(seed, scenario=Scenario.hanging(seed))
        cluster.run()
        named += len(cluster.faults.named)
    assert named >= len(seeds)


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(
            each, marks=() if each is names_workers_that_wait else pytest.mark.long, id=each.__name__
        )
        for each in HANG_MUTATIONS
    ],
)
def test_a_mutation_misses_a_hang_or_names_another(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_mutation(mutation, monkeypatch, MUTATION_SEEDS, Scenario.hanging, SimulationFailed)


# ---- a stage that lies ----


def run_liars(seeds: range) -> int:
    """Run seeds with a lying worker in a row; return in how many it was excluded. No other worker may be."""
    found = 0
    for seed in seeds:
        cluster = SimulatedCluster(seed, scenario=Scenario.lying_in_rows(seed))
        cluster.run()
        found += sum(bool(saved.job.excluded) for saved in cluster.disk.jobs.values())
    return found


@pytest.mark.parametrize(
    "seeds", [pytest.param(range(2), id="usual"), pytest.param(range(2, 12), marks=pytest.mark.long)]
)
def test_a_lying_stage_is_found(seeds: range) -> None:
    assert run_liars(seeds) > len(seeds) // 2


def test_the_last_pass_that_differs_convicts_sound_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_last(answers: Sequence[Answer]) -> int | None:
        passes = list(enumerate(zip(*(each.opinions for each in answers), strict=False)))
        return next((place for place, opinions in reversed(passes) if not agree(opinions)), None)

    monkeypatch.setattr(answers, "find_difference", find_last)
    with pytest.raises(SimulationFailed, match=r"excluded|no progress"):
        run_liars(range(20))
