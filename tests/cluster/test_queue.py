"""Pausing and resuming jobs of a cluster of daemons: the same bits, and nothing acknowledged is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protos import jobs_pb2 as jobs
from tests.support.cluster.bits import CHECKPOINT_EVERY, Bits, bits, gpt_config, spec_of
from tests.support.cluster.daemon import LIMIT_SECONDS, eventually, tiermesh
from tests.support.cluster.harness import Cluster

LAST = CHECKPOINT_EVERY + 1
"""Number of steps that workers make before they hold still; no checkpoint is due there."""


def run(cluster: Cluster, *words: object) -> tuple[int, dict[str, Any], str]:
    """Run a command; return its exit code, result and errors."""
    done = tiermesh(*words, "--json", "--aggregator", cluster.to_aggregator.address)
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


def wait_paused(cluster: Cluster, job: str) -> jobs.Job:
    return cluster.wait(job, lambda each: each.state == jobs.PAUSED, "the job to be paused")


@pytest.mark.parametrize("tiers", [3, pytest.param(2, marks=pytest.mark.long)])
def test_a_paused_job_makes_room_and_goes_on_to_the_same_bits(
    tmp_path: Path, corpus: Path, gpt_spec: str, undisturbed: Bits, tiers: int
) -> None:
    short = spec_of(corpus.parent, gpt_config(corpus, max_steps=1))
    with Cluster(tmp_path, tiers=tiers, workers=1, steps=LAST) as cluster:
        job = cluster.submit(gpt_spec)
        waiting = cluster.submit(short)
        cluster.wait_step(job, LAST)
        code, result, errors = run(cluster, "queue")
        assert code == 0, errors
        assert [(each["job"], each["position"]) for each in result["jobs"]] == [(job, None), (waiting, 1)]
        code, result, errors = run(cluster, "pause", job)
        assert (code, result["state"], result["pausing"]) == (0, "running", True), errors
        cluster.allow_steps(None)
        paused = wait_paused(cluster, job)
        assert paused.step == LAST + 1, "it stops after the COMMIT of its step"
        eventually(lambda: cluster.saved_steps(job)[-1] == LAST + 1, "the checkpoint of its last step")
        eventually(lambda: cluster.job(job).checkpoint_step == LAST + 1, "the record of it")
        cluster.finish(waiting)
        code, result, errors = run(cluster, "resume", job)
        assert (code, result["pausing"]) == (0, False), errors
        ended = cluster.finish(job)
        assert bits(ended) == undisturbed
        assert ended.generation == 1, (
            "it stayed open: an optimizer that loads a checkpoint raises the generation"
        )
        for command in ("pause", "resume"):
            code, _, errors = run(cluster, command, job)
            assert code == 2 and f"job {job} is succeeded already; only jobs that have not ended" in errors


@pytest.mark.long
def test_a_pause_that_was_acknowledged_survives_kill_9(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, tiers=3, workers=1, steps=LAST) as cluster:
        job = cluster.submit(gpt_spec)
        queued = cluster.submit(gpt_spec)
        cluster.wait_step(job, LAST)
        for each in (job, queued):
            assert run(cluster, "pause", each)[0] == 0
        assert run(cluster, "priority", queued, "-7")[1]["priority"] == -7
        cluster.aggregator.kill()
        cluster.start_aggregator()
        wait_paused(cluster, job)
        kept = cluster.job(queued)
        assert (kept.state, kept.priority) == (jobs.PAUSED, -7)
        assert not cluster.status().running_jobs
        cluster.allow_steps(None)
        assert run(cluster, "resume", job)[0] == 0
        ended = cluster.finish(job)
        assert bits(ended) == undisturbed
        assert ended.generation == 1, "it stayed open"
        code, _, errors = run(cluster, "resume", job)
        assert code == 2 and "succeeded already" in errors
        cluster.stub.Cancel(jobs.CancelRequest(job=queued), timeout=LIMIT_SECONDS)


@pytest.mark.long
def test_a_higher_priority_starts_first_and_wrong_requests_are_refused_in_one_line(
    tmp_path: Path, corpus: Path
) -> None:
    short = spec_of(corpus.parent, gpt_config(corpus, max_steps=1))
    with Cluster(tmp_path, workers=1, steps=1) as cluster:
        running = cluster.submit(spec_of(corpus.parent, gpt_config(corpus, preemptible=False)))
        cluster.wait_step(running, 1)
        first, second = cluster.submit(short), cluster.submit(short)
        assert run(cluster, "priority", second, 3)[0] == 0
        positions = {each["job"]: each["position"] for each in run(cluster, "queue")[1]["jobs"]}
        assert positions == {running: None, first: 2, second: 1}
        for words, expected in (
            (("priority", second, 101), "101 given, expected a whole number from -100 to 100"),
            (("priority", "nobody", 1), "no job 'nobody'"),
            (("resume", running), f"job {running} is running; expected a paused one"),
            (("resume", first), f"job {first} is queued; expected a paused one"),
            (("pause", "nobody"), "no job 'nobody'"),
        ):
            code, _, errors = run(cluster, *words)
            assert code == 2 and len(errors.splitlines()) == 1 and expected in errors, errors
        cluster.stub.Cancel(jobs.CancelRequest(job=running), timeout=LIMIT_SECONDS)
        cluster.allow_steps(None)
        started = [cluster.finish(job).started_seconds for job in (second, first)]
        assert started == sorted(started)
