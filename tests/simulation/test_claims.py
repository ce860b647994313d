"""Whole simulated clusters in which a worker that answers first says something else of the job than all others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aggregator.core.membership import claims
from aggregator.core.membership.claims import Claims
from protos.jobs_pb2 import SUCCEEDED
from tests.simulation.checked_runs import check_mutation, run_seed
from tests.simulation.scenario import IMPOSTOR, Scenario

SEEDS = 10


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_job_ends_in_the_honest_bits_whoever_answers_first(seed: int) -> None:
    cluster = run_seed(seed, Scenario.claimed_first(seed))
    job = cluster.disk.jobs["job-0"].job
    if job.state == SUCCEEDED:
        assert IMPOSTOR not in {each.worker for each in job.claims[0].claimants}


MOST_SEEDS = 40


def never_ends_claims(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Claims, "_is_present", lambda self, claimant: True)


def never_voids_weights(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claims, "void_weights", lambda job: None)


@pytest.mark.parametrize("mutation", [never_ends_claims, never_voids_weights])
def test_a_mutation_of_the_core_fails_a_seed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_mutation(mutation, monkeypatch, MOST_SEEDS, Scenario.claimed_first)
