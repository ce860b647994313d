"""The job service through commands and generated stubs; health, reflection and metrics of each role."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos import jobs_pb2 as jobs
from protos.cluster_pb2 import CheckpointRequest
from services.checkpoints.read import (
    read_checkpoint,
)
from services.protocol.file_refs import make_ref
from tests.support.cluster.bits import STEPS, Bits, bits, gpt_config, spec_of, write_config
from tests.support.cluster.daemon import LIMIT_SECONDS, Daemon, environment, eventually, tiermesh
from tests.support.cluster.fork_server import ROOT
from tests.support.cluster.harness import Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    options = ("--max-running-jobs", 1)
    folder = tmp_path_factory.mktemp("job-service")
    with Cluster(folder, tiers=3, workers=2, aggregator_options=options) as cluster:
        cluster.wait_workers(2)
        yield cluster


def run_json(cluster: Cluster, *arguments: object) -> dict[str, Any]:
    """Return the JSON result of a command that succeeds."""
    done = tiermesh(*arguments, "--aggregator", cluster.aggregator.address, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(result, dict)
    return result


def test_a_job_over_the_command_line(
    cluster: Cluster, corpus: Path, undisturbed: Bits, tmp_path: Path
) -> None:
    config = write_config(corpus.parent, gpt_config(corpus))
    ended = run_json(cluster, "submit", config, "--follow")
    assert (ended["state"], ended["step"], ended["model_sha256"]) == (
        "succeeded",
        STEPS,
        undisturbed.model_sha256,
    )
    assert ended["validation_loss"] == undisturbed.validation_loss
    job = ended["job"]
    assert run_json(cluster, "status", job)["state"] == "succeeded"
    assert job in [each["job"] for each in run_json(cluster, "jobs")["jobs"]]
    assert {each["name"] for each in run_json(cluster, "status")["workers"]} == {"worker-1", "worker-2"}

    printed = tiermesh("logs", job, "--aggregator", cluster.aggregator.address)
    assert printed.returncode == 0
    assert f"Step: {STEPS}, Loss: {undisturbed.loss:.7f}" in printed.stdout
    assert f"Validation loss: {undisturbed.validation_loss:.7f}" in printed.stdout

    fetched = run_json(cluster, "download", job, tmp_path)
    checkpoint = read_checkpoint(Path(fetched["path"]))
    assert (checkpoint.step, checkpoint.model_sha256) == (STEPS, undisturbed.model_sha256)
    older = run_json(cluster, "download", job, tmp_path, "--step", "0")
    assert read_checkpoint(Path(older["path"])).step == 0

    saved = cluster.saved_steps(job)
    assert saved[0] == 0 and saved[-1] == STEPS
    refused = tiermesh("download", job, tmp_path, "--step", "5", "--aggregator", cluster.aggregator.address)
    assert refused.returncode == 2
    listed = ", ".join(map(str, saved))
    assert f"job {job} has no checkpoint of step 5; there are: {listed}" in refused.stderr


@pytest.mark.long
def test_a_job_over_generated_stubs(
    cluster: Cluster, gpt_spec: str, long_spec: str, undisturbed: Bits
) -> None:
    stub = cluster.stub
    before = cluster.submit(long_spec)
    job = stub.Submit(jobs.SubmitRequest(name="by stub", spec_json=gpt_spec), timeout=LIMIT_SECONDS)
    assert (job.name, job.state) == ("by stub", jobs.QUEUED)
    follow = stub.Logs(jobs.LogsRequest(job=job.id, follow=True), timeout=LIMIT_SECONDS)
    watch = stub.Watch(jobs.JobRequest(job=job.id), timeout=LIMIT_SECONDS)
    events = [next(watch)]  # from here on none is missed
    stub.Cancel(jobs.CancelRequest(job=before), timeout=LIMIT_SECONDS)
    events += watch
    assert [event.job.step for event in events if event.kind == "step"] == list(range(1, STEPS + 1))
    assert all(event.grad_norm > 0 for event in events if event.kind == "step")
    assert {event.kind for event in events} >= {"state", "step", "evaluation", "checkpoint"}
    assert bits(events[-1].job) == undisturbed
    assert [line.text for line in follow][-1] == f"succeeded: finished {STEPS} steps"

    again = list(stub.Watch(jobs.JobRequest(job=job.id), timeout=LIMIT_SECONDS))
    assert [event.job.state for event in again] == [jobs.SUCCEEDED], (
        "a job that is over: its state, and the end"
    )
    found = stub.Checkpoint(CheckpointRequest(job=job.id, newest=True), timeout=LIMIT_SECONDS)
    folder = Path(events[-1].job.checkpoint)
    assert found.step == STEPS
    assert dict(found.files) == {path.name: make_ref(path.read_bytes()) for path in folder.iterdir()}
    stored = stub.Get(jobs.JobRequest(job=job.id), timeout=LIMIT_SECONDS)
    assert stored == events[-1].job


def start_command(cluster: Cluster, *words: object) -> subprocess.Popen[str]:
    """Start a command that goes on until the test ends it, or its job ends."""
    return subprocess.Popen(
        [sys.executable, "-m", "cli.main", *map(str, words), "--aggregator", cluster.aggregator.address],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_cancelling_frees_the_workers_for_the_next_job(
    cluster: Cluster, long_spec: str, short_spec: str
) -> None:
    running, queued, last = (cluster.submit(spec) for spec in (long_spec, short_spec, short_spec))
    followed = start_command(cluster, "logs", running, "--follow")
    cluster.wait_step(running, 2)
    assert cluster.job(queued).state == jobs.QUEUED
    assert run_json(cluster, "cancel", queued)["state"] == "cancelled"
    answer = run_json(cluster, "cancel", running)
    assert (answer["state"], answer["detail"]) == ("cancelled", "cancelled by request")
    assert cluster.finish(last).step == 5
    out, _ = followed.communicate(timeout=LIMIT_SECONDS)
    assert followed.returncode == 0
    # A checkpoint that was being written when the job was cancelled is on record after it.
    assert "cancelled: cancelled by request\n" in out
    again = tiermesh("cancel", running, "--aggregator", cluster.aggregator.address)
    assert again.returncode == 2
    assert f"job {running} is cancelled already" in again.stderr
    for worker in cluster.workers:
        worker.wait_log(f"job {running}: cancelled by request")


def test_a_job_goes_on_after_the_command_that_follows_it_is_interrupted(
    cluster: Cluster, corpus: Path, tmp_path: Path
) -> None:
    job_file = write_config(tmp_path, gpt_config(corpus, project_name="long", max_steps=100_000))
    following = start_command(cluster, "submit", job_file, "--follow")
    assert following.stdout is not None
    for line in following.stdout:
        if "step 1/" in line:
            break
    following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=LIMIT_SECONDS)
    assert following.returncode == 1
    job = cluster.status().running_jobs[0]
    assert errors.splitlines()[-1] == (
        f"tiermesh: interrupted; job {job} goes on: follow it with `tiermesh logs {job} --follow`, cancel it with "
        f"`tiermesh cancel {job}`"
    )
    cluster.stub.Cancel(jobs.CancelRequest(job=job, now=True), timeout=LIMIT_SECONDS)


def test_a_job_that_no_worker_can_build_fails(cluster: Cluster, corpus: Path, tmp_path: Path) -> None:
    """Change the corpus between submission and the workers' build."""
    changed = tmp_path / "corpus.txt"
    changed.write_text(corpus.read_text())
    spec = spec_of(tmp_path, gpt_config(changed))
    changed.write_text(corpus.read_text() + "more")
    ended = cluster.wait(cluster.submit(spec), lambda each: each.state == jobs.FAILED, "its failure")
    assert ended.detail.startswith("no worker can run the job: worker-")
    assert "sha256" in ended.detail and "\n" not in ended.detail


def test_a_job_whose_corpus_is_nowhere_names_it(cluster: Cluster, corpus: Path, tmp_path: Path) -> None:
    lost = tmp_path / "lost.txt"
    lost.write_text(corpus.read_text() + "which nobody else has")
    spec = spec_of(tmp_path, gpt_config(lost))
    lost.unlink()
    job = cluster.submit(spec)
    eventually(lambda: "lost.txt" in run_json(cluster, "status")["waiting"], "the wait for the file")
    assert cluster.stub.Get(jobs.JobRequest(job=job), timeout=LIMIT_SECONDS).state == jobs.RUNNING
    cluster.stub.Cancel(jobs.CancelRequest(job=job), timeout=LIMIT_SECONDS)
    cluster.wait(job, lambda each: each.state == jobs.CANCELLED, "its end")


@pytest.mark.parametrize("role", ["worker", "aggregator", "optimizer"])
def test_health_and_reflection(cluster: Cluster, role: str) -> None:
    services = {
        "worker": [],
        "aggregator": ["tiermesh.Cluster", "tiermesh.Jobs", "tiermesh.Files"],
        "optimizer": ["tiermesh.Optimizer", "tiermesh.Files"],
    }[role]
    with grpc.insecure_channel(cluster.serving(role).address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", *services):
            answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=LIMIT_SECONDS)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        ask = reflection_pb2.ServerReflectionRequest
        requests = [ask(list_services=""), *(ask(file_containing_symbol=name) for name in services)]
        listed, *files = reflection.ServerReflectionInfo(iter(requests), timeout=LIMIT_SECONDS)
        names = [each.name for each in listed.list_services_response.service]
        assert set(names) == {*services, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        assert all(each.file_descriptor_response.file_descriptor_proto for each in files)


def test_metrics_of_each_role_know_the_job(cluster: Cluster, long_spec: str, short_spec: str) -> None:
    endless = cluster.submit(long_spec)  # others end without waiting for the weights of every worker

    def steps() -> list[float]:
        return [each.metric("tiermesh_weights_step", job=endless, role="worker") for each in cluster.workers]

    eventually(lambda: all(steps()), "the weights of each worker")
    cluster.stub.Cancel(jobs.CancelRequest(job=endless), timeout=LIMIT_SECONDS)
    job = cluster.submit(short_spec)
    cluster.finish(job)
    assert cluster.optimizer is not None
    expected: list[tuple[Daemon, str, str]] = [
        (cluster.aggregator, "tiermesh_step", "aggregator"),
        (cluster.aggregator, "tiermesh_commits_total", "aggregator"),
        (cluster.optimizer, "tiermesh_updates_total", "optimizer"),
    ]
    for daemon, name, role in expected:
        assert daemon.metric(name, job=job, role=role) == 5, f"{name} of {daemon.name}"
    assert cluster.aggregator.metric("tiermesh_validation_loss", job=job) > 0
    assert all(worker.metric("tiermesh_aggregator_connected") == 1 for worker in cluster.workers)
