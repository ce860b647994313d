"""The time left that is reported, in clusters whose processes die: it shrinks with the steps and does not jump."""

from __future__ import annotations

import pytest

from aggregator.core.events import Note
from aggregator.core.pace import estimate_seconds_left
from protos.jobs_pb2 import Job
from tests.simulation.job_checks import JobChecks
from tests.simulation.scenario import Scenario
from tests.simulation.simulated_cluster import SimulatedCluster

SEEDS = 10
MEASURED_STEPS = 8
"""Steps after which the time per step counts as known."""


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Return the list of what is reported of the first job's steps."""
    found: list[Job] = []
    noted = JobChecks.noted

    def keep(self: JobChecks, note: Note) -> None:
        noted(self, note)
        if note.kind == "step" and note.job.id == "job-0":
            found.append(note.job)

    monkeypatch.setattr(JobChecks, "noted", keep)
    return found


@pytest.mark.long
def test_the_time_left_survives_deaths_of_all_roles(reported: list[Job]) -> None:
    went_back = restarts = 0
    for seed in range(SEEDS):
        reported.clear()
        cluster = SimulatedCluster(seed, scenario=Scenario.hostile(seed))
        cluster.run()
        plan = cluster.jobs["job-0"].plan
        known = [job for job in reported if job.HasField("seconds_left")][MEASURED_STEPS:]
        for job in known:
            assert job.step_seconds < cluster.scenario.step_seconds, (
                f"seed {seed}: it jumped at step {job.step}"
            )
            exact = estimate_seconds_left(plan, job.step, job.step_seconds, job.evaluation_seconds)
            if job.evaluation_batches:  # their evaluation has begun before the COMMIT was reported
                exact += job.evaluation_seconds
            # Newer weights can overtake the COMMIT of the step that is reported here, so it may be less. What an
            # evaluation still takes follows from its batches so far, once there are any.
            if not job.evaluated_batches:
                assert job.seconds_left <= exact * (1 + 1e-9), f"seed {seed}, step {job.step}"
        went_back += max(job.generation for job in reported) - 1
        restarts += cluster.disk.epoch - 1
    assert went_back > SEEDS and restarts > SEEDS, "faults happened"
