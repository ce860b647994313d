"""Two jobs at once on real daemons: what is done for one leaves the other alone, and both end in their bits."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from cli.timeline.picture import write
from protos import jobs_pb2 as jobs
from services.instrumentation.timeline import TimelineOptions
from tests.cluster.test_backup import back_up, restore
from tests.cluster.test_continue import run
from tests.cluster.test_prune import is_known, log_of, prune
from tests.cluster.test_several_jobs import spec
from tests.cluster.test_standby import Pair
from tests.cluster.test_tracking import wait_written
from tests.cluster.test_upgrade import COMEBACK, Workers, new_code_alone, new_tree
from tests.support.cluster.bits import CHECKPOINT_EVERY, STEPS, Bits, bits, gpt_config, spec_of
from tests.support.cluster.daemon import LIMIT_SECONDS, eventually, tiermesh
from tests.support.cluster.harness import Cluster

__all__ = ["new_tree"]  # a fixture

LAST = CHECKPOINT_EVERY + 1
"""Number of steps that jobs make before a test does something; no checkpoint is due there."""


def submit_two(cluster: Cluster, corpus: Path, **training: Any) -> list[str]:
    """Submit two jobs that can have a worker each; return them once each has made all steps that are allowed."""
    cluster.wait_workers(2)
    names = ("one", "two")
    submitted = [
        cluster.submit(spec(cluster.folder, corpus, name, max_workers=1, **training)) for name in names
    ]
    for job in submitted:
        cluster.wait_step(job, LAST)
    return submitted


def finish(cluster: Cluster, submitted: list[str]) -> list[Bits]:
    return [bits(cluster.finish(job)) for job in submitted]


@pytest.mark.long
def test_a_standby_takes_over_both_jobs(tmp_path: Path, corpus: Path, undisturbed: Bits) -> None:
    with Pair(tmp_path, tiers=3) as pair:
        pair.add_worker()
        pair.allow_steps(LAST)
        submitted = submit_two(pair, corpus)
        pair.first.kill()
        pair.taken_over()
        assert finish(pair, submitted) == [undisturbed] * 2
        assert [pair.job(job).generation for job in submitted] == [1, 1], "no step was lost"


@pytest.mark.long
@pytest.mark.parametrize("arrangement", [{"tiers": 3}, {"shards": 2}], ids=["optimizer", "shard"])
def test_a_killed_owner_of_the_tensors_takes_both_jobs_back(
    tmp_path: Path, corpus: Path, undisturbed: Bits, arrangement: dict[str, Any]
) -> None:
    with Cluster(tmp_path, workers=2, steps=LAST, **arrangement) as cluster:
        submitted = submit_two(cluster, corpus)
        if cluster.optimizer is not None:
            cluster.optimizer.kill()
            cluster.start_optimizer()
        else:
            cluster.shards[1].kill()
            cluster.start_shard(1)
        assert finish(cluster, submitted) == [undisturbed] * 2
        assert [cluster.job(job).generation for job in submitted] == [2, 2]


@pytest.mark.long
def test_a_pipeline_runs_beside_a_job_without_one(tmp_path: Path, corpus: Path, undisturbed: Bits) -> None:
    split = {"enabled": True, "num_workers": 2, "pipeline_parallel_config": {"blocks_per_rank": {0: 1, 1: 1}}}
    with Cluster(tmp_path, tiers=3, workers=3, steps=LAST) as cluster:
        cluster.wait_workers(3)
        config = gpt_config(corpus, project_name="piped", min_workers=2, max_workers=2)
        piped = cluster.submit(spec_of(tmp_path, config | {"multihost_config": split}))
        whole = cluster.submit(spec(tmp_path, corpus, "whole"))
        for job in (piped, whole):
            cluster.wait_step(job, LAST)
        stages = {each.name: each.stages for each in cluster.status().workers if each.job == piped}
        assert list(stages.values()) == [1, 1]
        (other,) = (each for each in cluster.status().workers if each.job == whole)
        other_worker = next(each for each in cluster.workers if each.name == other.name)
        other_worker.kill()
        cluster.start_worker(name=other.name)
        assert finish(cluster, [piped, whole]) == [undisturbed] * 2
        assert {each.name for each in cluster.status().workers} == {*stages, other.name}


@pytest.mark.long
def test_a_restored_queue_has_both_jobs_go_on(tmp_path: Path, corpus: Path, undisturbed: Bits) -> None:
    with Cluster(tmp_path, tiers=3, workers=2, heartbeat_seconds=0.5, steps=LAST) as cluster:
        submitted = submit_two(cluster, corpus)
        back_up(cluster, tmp_path / "backup")
        late = cluster.submit(spec(tmp_path, corpus, "late"))
        cluster.allow_steps(LAST + CHECKPOINT_EVERY)
        for job in submitted:
            cluster.checkpoint(job, 2 * CHECKPOINT_EVERY)
        cluster.aggregator.kill()
        restore(cluster, tmp_path / "backup")
        cluster.start_aggregator()
        assert finish(cluster, submitted) == [undisturbed] * 2
        assert not is_known(cluster, late), "it was submitted after the backup"


@pytest.mark.long
def test_each_job_changes_its_code_once_its_own_workers_have(
    tmp_path: Path, corpus: Path, new_tree: Path
) -> None:
    with (
        Cluster(
            tmp_path / "upgrade", workers=2, steps=LAST, heartbeat_seconds=0.5, aggregator_options=COMEBACK
        ) as cluster,
        Workers(cluster, new_tree) as workers,
    ):
        submitted = submit_two(cluster, corpus, model_save_interval=10_000)
        job_of = {each.name: each.job for each in cluster.status().workers}
        for number, worker in enumerate(cluster.workers, 1):
            assert worker.terminate() == 0
            workers.start(worker.name)
            job = job_of[worker.name]
            cluster.wait(job, lambda each: len(each.code_changes) == 1, "the change")
            changed = [each for each in submitted if cluster.job(each).code_changes]
            assert job in changed and len(changed) == number, "the other one keeps its code"
        found = finish(cluster, submitted)
    alone = spec(tmp_path, corpus, "alone", model_save_interval=10_000)
    assert found == [new_code_alone(tmp_path / "new", new_tree, alone)] * 2


@pytest.mark.parametrize("tiers", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_prune_and_the_retention_leave_running_jobs_alone(
    tmp_path: Path, corpus: Path, undisturbed: Bits, tiers: int
) -> None:
    retention = ("--retain", "checkpoints.keep=0")
    with Cluster(tmp_path, tiers=tiers, workers=2, steps=LAST, aggregator_options=retention) as cluster:
        ended = cluster.submit(spec(tmp_path, corpus, "short", max_steps=CHECKPOINT_EVERY))
        cluster.finish(ended)
        cluster.allow_steps(LAST)
        submitted = submit_two(cluster, corpus)
        eventually(
            lambda: cluster.saved_steps(ended) == [CHECKPOINT_EVERY], "the end of its older checkpoint"
        )
        code, _, errors = prune(cluster, ended, submitted[0], "--yes")
        assert code == 2 and f"job {submitted[0]} is running" in errors
        code, result, errors = prune(cluster, "--keep", "0", "--yes")
        assert code == 0 and [each["job"] for each in result["pruned"]] == [ended], errors
        assert not is_known(cluster, ended)
        for job in submitted:
            assert cluster.saved_steps(job) == [0, CHECKPOINT_EVERY] and log_of(cluster, job).exists()
        assert finish(cluster, submitted) == [undisturbed] * 2


@pytest.mark.long
def test_each_job_has_its_steps_tracked_once_also_if_it_was_preempted(
    tmp_path: Path, corpus: Path, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, tiers=3, workers=2, steps=LAST) as cluster:
        submitted = submit_two(cluster, corpus, tracking=["csv", "jsonl"])
        folders = [tmp_path / "aggregator-state" / "tracking" / job for job in submitted]
        for folder in folders:
            wait_written(folder, "step", LAST)
        urgent = cluster.submit(spec(tmp_path, corpus, "urgent", max_steps=1, min_workers=2))
        request = jobs.PriorityRequest(job=urgent, priority=1)
        cluster.stub.SetPriority(request, timeout=LIMIT_SECONDS)
        cluster.finish(urgent)
        assert finish(cluster, submitted) == [undisturbed] * 2
        for folder in folders:
            wait_written(folder, "evaluation", STEPS)
            with (folder / "metrics.csv").open() as file:
                rows = [int(row["step"]) for row in csv.DictReader(file) if row["kind"] == "step"]
            assert rows == list(range(1, STEPS + 1))


@pytest.mark.long
def test_a_timeline_has_the_steps_of_both_jobs(tmp_path: Path, corpus: Path, undisturbed: Bits) -> None:
    folder = tmp_path / "timeline"
    flags = TimelineOptions.parse(folder, "4-5").flags
    with Cluster(tmp_path, tiers=3, workers=2, steps=LAST, options=flags) as cluster:
        one, two = submit_two(cluster, corpus)
        assert finish(cluster, [one, two]) == [undisturbed] * 2
        files = [folder / f"{name}.json" for name in ("worker-1", "worker-2", "aggregator", "optimizer")]
        eventually(lambda: all(each.exists() for each in files), "the timelines' files")
    refused, both = tiermesh("timeline", folder), ", ".join(sorted([one, two]))
    assert refused.returncode == 2 and f"expected one of the recorded jobs: {both}" in refused.stderr
    traces = [write(folder, tmp_path / job, job) for job in (one, two)]
    assert [trace.steps for trace in traces] == [[4, 5]] * 2
    assert {worker for trace in traces for worker in trace.workers} == {"worker-1", "worker-2"}


def test_a_job_is_cancelled_and_continued_while_the_other_goes_on(
    tmp_path: Path, corpus: Path, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, tiers=3, workers=2, steps=LAST) as cluster:
        one, two = submit_two(cluster, corpus)
        code, cancelled, errors = run(cluster, "cancel", one)
        assert code == 0 and cancelled["state"] == "cancelled", errors
        eventually(lambda: cluster.job(one).checkpoint_step == LAST, "its last checkpoint")
        code, later, errors = run(cluster, "continue", one, "--steps", STEPS)
        assert code == 0 and later["started_from"] == f"{one}:{LAST}", errors
        assert cluster.job(two).state == jobs.RUNNING
        assert finish(cluster, [later["job"], two]) == [undisturbed] * 2
        assert cluster.job(two).generation == 1, "it was not disturbed"


def test_the_status_and_the_queue_name_both_jobs(tmp_path: Path, corpus: Path) -> None:
    with Cluster(tmp_path, workers=2, steps=LAST) as cluster:
        submitted = submit_two(cluster, corpus)
        waiting = cluster.submit(spec(tmp_path, corpus, "three", min_workers=2))
        address = ("--aggregator", cluster.to_aggregator.address)
        status, queue = (tiermesh(word, *address).stdout for word in ("status", "queue"))
        for job in submitted:
            assert f"running job: {job} (phase train, step {LAST};" in status
            assert any(line.split()[:3:2] == [job, "running"] for line in queue.splitlines())
        (line,) = (each for each in queue.splitlines() if waiting in each)
        assert line.split()[0] == "1" and "it needs 2 workers, and jobs that come first leave 0" in line
