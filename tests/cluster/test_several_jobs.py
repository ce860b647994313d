"""Several jobs at once on real daemons: each ends in the bits of its run alone, whatever else the cluster does."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from protos import jobs_pb2 as jobs
from tests.support.cluster.bits import CHECKPOINT_EVERY, Bits, bits, gpt_config, spec_of
from tests.support.cluster.daemon import LIMIT_SECONDS, eventually
from tests.support.cluster.harness import ENDED, Cluster


def spec(folder: Path, corpus: Path, name: str, **training: object) -> str:
    """Return the job of `undisturbed`, under another name and with a schedule of its own."""
    return spec_of(folder, gpt_config(corpus, project_name=name, **training))


@pytest.mark.parametrize(
    "arrangement",
    [
        {"tiers": 2},
        pytest.param({"tiers": 3}, marks=pytest.mark.long),
        pytest.param({"shards": 2}, marks=pytest.mark.long),
    ],
    ids=["2 tiers", "3 tiers", "shards"],
)
def test_two_jobs_at_once_end_in_the_bits_of_one_alone(
    tmp_path: Path, corpus: Path, undisturbed: Bits, arrangement: dict[str, Any]
) -> None:
    with Cluster(tmp_path, workers=2, steps=2, **arrangement) as cluster:
        cluster.wait_workers(2)
        submitted = [cluster.submit(spec(tmp_path, corpus, name, max_workers=1)) for name in ("one", "two")]
        for job in submitted:
            cluster.wait_step(job, 2)
        assert list(cluster.status().running_jobs) == submitted
        assert {each.job for each in cluster.status().workers} == set(submitted)
        assert [bits(cluster.finish(job)) for job in submitted] == [undisturbed] * 2


def test_a_job_of_a_higher_priority_takes_the_worker_and_no_step_is_lost(
    tmp_path: Path, corpus: Path, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, tiers=3, workers=1, steps=CHECKPOINT_EVERY + 2) as cluster:
        first = cluster.submit(spec(tmp_path, corpus, "first"))
        before = cluster.wait_step(first, CHECKPOINT_EVERY + 1)
        second = cluster.submit(spec(tmp_path, corpus, "second"))
        cluster.stub.SetPriority(jobs.PriorityRequest(job=second, priority=5), timeout=LIMIT_SECONDS)
        cluster.allow_steps(None)
        cluster.wait_step(second, 1)
        preempted = cluster.job(first)
        assert preempted.state == jobs.QUEUED and preempted.step >= before.step
        assert bits(cluster.finish(second)) == undisturbed
        assert bits(cluster.finish(first)) == undisturbed


def test_a_killed_aggregator_resumes_all_jobs(tmp_path: Path, corpus: Path, undisturbed: Bits) -> None:
    with Cluster(tmp_path, workers=2, steps=3) as cluster:
        cluster.wait_workers(2)
        submitted = [cluster.submit(spec(tmp_path, corpus, name, max_workers=1)) for name in ("one", "two")]
        for job in submitted:
            cluster.wait_step(job, 3)
        cluster.aggregator.kill()
        cluster.allow_steps(None)
        cluster.start_aggregator()
        assert [bits(cluster.finish(job)) for job in submitted] == [undisturbed] * 2


def run_schedule(folder: Path, corpus: Path, undisturbed: Bits, seed: int) -> None:
    """Run five jobs on 1 to 6 workers with drawn arrivals, priorities, deaths, pauses and restarts.

    The last job comes first, needs all workers, and is submitted while others compute: it stops them.
    """
    draw = random.Random(seed)
    workers = draw.randint(1, 6)
    arrangement = draw.choice(({"tiers": 2}, {"tiers": 3}, {"shards": 2}))
    with Cluster(folder, workers=workers, **arrangement) as cluster:
        submitted: list[str] = []
        for number in range(5):
            least = draw.randint(1, min(2, workers))
            settings = {"min_workers": least, "max_workers": draw.randint(least, 4)}
            if number == 4:
                settings = {"min_workers": workers, "priority": 5}
                eventually(lambda: makes_steps(cluster, submitted), "a step of a job")
            submitted.append(cluster.submit(spec(folder, corpus, f"job-{number}", **settings)))
            for _ in range(draw.randint(0, 3)):
                disturb(cluster, draw, draw.choice(submitted))
        ended = [cluster.finish(job) for job in submitted]
        assert [bits(job) for job in ended] == [undisturbed] * 5, f"schedule {seed}"


def makes_steps(cluster: Cluster, submitted: Iterable[str]) -> bool:
    """Return whether a job makes steps, or all have ended."""
    found = [cluster.job(job) for job in submitted]
    return any(each.state == jobs.RUNNING and each.step for each in found) or all(
        each.state in ENDED for each in found
    )


def disturb(cluster: Cluster, draw: random.Random, job: str) -> None:
    """Do one thing to the cluster or to a job that has not ended."""
    what = draw.choice(("priority", "pause", "worker", "step", "aggregator"))
    if what == "worker":
        at = draw.randrange(len(cluster.workers))
        cluster.workers[at].kill()
        cluster.start_worker(wait=False)
    elif what == "aggregator" and draw.random() < 0.3:
        cluster.aggregator.kill()
        cluster.start_aggregator()
    elif cluster.job(job).state in ENDED:
        return
    elif what == "priority":
        request = jobs.PriorityRequest(job=job, priority=draw.randint(-2, 2))
        cluster.stub.SetPriority(request, timeout=LIMIT_SECONDS)
    elif what == "pause":
        cluster.stub.Pause(jobs.JobRequest(job=job), timeout=LIMIT_SECONDS)
        eventually(lambda: cluster.job(job).state in (jobs.PAUSED, *ENDED), "the job is paused")
        if cluster.job(job).state == jobs.PAUSED:
            cluster.stub.Resume(jobs.JobRequest(job=job), timeout=LIMIT_SECONDS)
    else:
        step = cluster.job(job).step
        eventually(lambda: cluster.job(job).step > step or cluster.job(job).state != jobs.RUNNING, "a step")


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=pytest.mark.long if seed < 3 else pytest.mark.slow) for seed in range(20)],
)
def test_a_drawn_schedule_of_five_jobs(tmp_path: Path, corpus: Path, undisturbed: Bits, seed: int) -> None:
    run_schedule(tmp_path, corpus, undisturbed, seed)
