"""Caps of real daemons: each is told by name, with what to do, and counted."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from aggregator.storage.capped_log import CappedLog
from protos import jobs_pb2 as jobs
from protos.cluster_pb2 import CheckpointRequest
from protos.files_pb2 import ReadFileRequest
from services.caps import MB
from services.config.job import MOST_SPEC_BYTES
from services.protocol.file_refs import MAX_PIECE_BYTES
from services.transport.access.permissions import CallerKind
from tests.support.certificates import make_certificate, make_certificates
from tests.support.cluster.bits import gpt_config, regression_config, spec_of, write_config
from tests.support.cluster.daemon import LIMIT_SECONDS, eventually, tiermesh, tls_flags
from tests.support.cluster.harness import Cluster
from tests.support.cluster.stock_files import open_read

Run = Callable[..., tuple[int, dict[str, Any], str]]


def reached(cluster: Cluster) -> dict[str, float]:
    """Return how often each cap was reached, without those that never were."""
    prefix = 'tiermesh_caps_reached_total{cap="'
    found = {
        name.removeprefix(prefix).partition('"')[0]: count
        for name, count in cluster.aggregator.metrics().items()
        if name.startswith(prefix)
    }
    return {cap: count for cap, count in found.items() if count}


@pytest.fixture
def people(tmp_path: Path) -> Iterator[tuple[Cluster, Run]]:
    """Start a cluster with few jobs for each person, and return how a person runs a command."""
    files = make_certificates(tmp_path)
    for name in ("alice", "bob"):
        make_certificate(tmp_path, name, files / "authority.pem", CallerKind.PERSON)
    caps = ("--max-queued-jobs", 3, "--max-jobs-per-person", 2)
    with Cluster(tmp_path, certificates=files, aggregator_options=caps) as cluster:

        def run(person: str, *words: object) -> tuple[int, dict[str, Any], str]:
            address = ("--aggregator", cluster.aggregator.address)
            done = tiermesh(*words, "--json", *address, *tls_flags(files, person))
            return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr

        yield cluster, run


@pytest.mark.long
def test_submit_says_which_cap_is_reached_and_that_it_may_pass(
    people: tuple[Cluster, Run], corpus: Path
) -> None:
    cluster, run = people
    config = write_config(corpus.parent, gpt_config(corpus))
    first = run("alice", "submit", config)
    assert first[0] == 0 == run("alice", "submit", config)[0]
    code, result, errors = run("alice", "submit", config)
    assert errors.splitlines() == [
        f"tiermesh: aggregator {cluster.aggregator.address}: person alice: has 2 jobs queued, running or paused, "
        "expected at most 2 (--max-jobs-per-person of the aggregator); submit again when some have ended, or cancel "
        "some with `tiermesh cancel`"
    ]
    assert (code, result["exit_code"]) == (75, 75)
    assert run("bob", "submit", config)[0] == 0
    code, _, errors = run("bob", "submit", config)
    assert code == 75
    assert errors.splitlines() == [
        f"tiermesh: aggregator {cluster.aggregator.address}: queue: 3 jobs queued, running or paused, expected "
        "at most 3 (--max-queued-jobs of the aggregator); submit again when some have ended, or cancel some with "
        "`tiermesh cancel`"
    ]
    assert run("alice", "cancel", first[1]["job"])[0] == 0
    assert run("bob", "submit", config)[0] == 0


def test_concurrent_submissions_and_a_spec_that_is_too_large(tmp_path: Path, gpt_spec: str) -> None:
    with Cluster(tmp_path, aggregator_options=("--max-queued-jobs", 5)) as cluster:

        def submit(number: int) -> jobs.Job | grpc.StatusCode:
            request = jobs.SubmitRequest(spec_json=gpt_spec, request_id=f"request-{number}")
            try:
                return cluster.stub.Submit(request, timeout=LIMIT_SECONDS)
            except grpc.RpcError as error:
                code: grpc.StatusCode = error.code()
                return code

        with ThreadPoolExecutor(10) as threads:
            answers = [*threads.map(submit, range(20))]
        queued = {number: each for number, each in enumerate(answers) if isinstance(each, jobs.Job)}
        assert len(queued) == 5
        assert {each for each in answers if not isinstance(each, jobs.Job)} == {
            grpc.StatusCode.RESOURCE_EXHAUSTED
        }
        for number, job in queued.items():
            again = submit(number)
            assert isinstance(again, jobs.Job) and again.id == job.id, "a repeated request yields its job"
        cluster.aggregator.kill()
        cluster.start_aggregator()
        assert submit(99) is grpc.StatusCode.RESOURCE_EXHAUSTED

        large = jobs.SubmitRequest(spec_json=gpt_spec + " " * MOST_SPEC_BYTES)
        with pytest.raises(grpc.RpcError, match=f"expected at most {MOST_SPEC_BYTES}; shorten") as refused:
            cluster.stub.Submit(large, timeout=LIMIT_SECONDS)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert reached(cluster) == {"queued_jobs": 1, "spec_bytes": 1}


@pytest.mark.long
def test_a_log_keeps_its_first_and_last_lines_and_the_count_over_a_restart(
    tmp_path: Path, long_spec: str
) -> None:
    with Cluster(tmp_path, workers=1, aggregator_options=("--max-log-mb", 1)) as cluster:
        job = cluster.submit(long_spec)
        cluster.wait_step(job, 1)
        cluster.aggregator.kill()
        first, end, _ = CappedLog(tmp_path / "aggregator-state" / "logs", job, MB).paths
        line = json.dumps({"seconds": 1.0, "kind": "step", "text": "x" * 900}) + "\n"
        with first.open("a") as file:
            file.write(line * (500_000 // len(line)))
        told = json.dumps({"seconds": 1.0, "kind": "missing", "text": "7 lines are missing here", "lines": 7})
        lines = 249_000 // len(line)
        end.write_text(f"{told}\n{line * lines}")
        cluster.start_aggregator()

        follow = cluster.stub.Logs(jobs.LogsRequest(job=job, follow=True), timeout=LIMIT_SECONDS)
        eventually(lambda: reached(cluster) == {"log_bytes": 1}, "the log to reach its cap")
        cluster.stub.Cancel(jobs.CancelRequest(job=job), timeout=LIMIT_SECONDS)
        assert [each.text for each in follow][-1] == "cancelled: cancelled by request"
        assert first.stat().st_size + end.stat().st_size <= MB
        removed = cluster.aggregator.metric("tiermesh_log_lines_lost_total")
        assert 0 < removed < lines
        printed = tiermesh("logs", job, "--aggregator", cluster.aggregator.address).stdout
        assert f"{7 + removed:g} lines are missing here: this log has reached its cap of 1 MB" in printed
        assert "queued" in printed.splitlines()[0]
        lines_at_end = [each for each in printed.splitlines() if "checkpoint of step" not in each]
        assert lines_at_end[-1].endswith("cancelled: cancelled by request"), "a late checkpoint may follow"
        cluster.aggregator.wait_log(f"job {job}: its log has reached its cap of 1 MB (--max-log-mb)")


@pytest.mark.long
@pytest.mark.parametrize("tiers", [2, 3])
def test_downloads_share_a_bandwidth_and_one_too_many_is_refused(
    tmp_path: Path, corpus: Path, tiers: int
) -> None:
    config = regression_config(max_steps=1, batch_size=2, gradient_accumulation_steps=1)
    config["linear_regression_config"] = {"num_features": 1024, "num_targets": 1024, "training_samples": 40}
    caps = ("--max-download-mb-per-second", 1)
    with Cluster(tmp_path, tiers=tiers, workers=1, aggregator_options=caps) as cluster:
        job = cluster.submit(spec_of(corpus.parent, config))
        cluster.finish(job)

        def download(number: int) -> subprocess.CompletedProcess[str]:
            return tiermesh(
                "download", job, tmp_path / f"copy-{number}", "--aggregator", cluster.aggregator.address
            )

        asked = CheckpointRequest(job=job, newest=True)
        found = cluster.stub.Checkpoint(asked, timeout=LIMIT_SECONDS)
        largest = max(found.files.values(), key=lambda ref: ref.size)
        request = ReadFileRequest(job=job, step=found.step, sha256=largest.sha256)
        streams = [open_read(cluster.channel, request, 4 * LIMIT_SECONDS) for _ in range(9)]
        for stream in streams:
            next(stream)  # it has begun, and takes some 4 s more if it has all of the bandwidth
        refused = download(0)
        assert refused.returncode == 75
        assert refused.stderr.splitlines() == [
            f"tiermesh: aggregator {cluster.aggregator.address}: downloads: 9 are under way, expected at most 9 with "
            "--max-download-mb-per-second 1 of the aggregator; try again when one has ended"
        ]
        for stream in streams[1:]:
            stream.cancel()  # one stays that reads nothing
        began = time.monotonic()
        eventually(lambda: download(1).returncode == 0, "a download")
        size = sum(path.stat().st_size for path in (tmp_path / "copy-1").rglob("*") if path.is_file())
        assert size > 4 * MB
        assert time.monotonic() - began >= (size - MAX_PIECE_BYTES) / MB, "the burst is one piece"
        assert reached(cluster).keys() == {"downloads", "download_bandwidth"}


def test_a_model_beyond_the_cap_is_refused_with_both_numbers(tmp_path: Path) -> None:
    """The default model of a linear regression has 64 × 32 weights and 32 biases."""
    with Cluster(tmp_path, aggregator_options=("--max-parameters", 2079)) as cluster:
        with pytest.raises(grpc.RpcError) as caught:
            cluster.submit(spec_of(tmp_path, regression_config()))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "2080 parameters, expected at most 2079" in caught.value.details()
        assert "--max-parameters" in caught.value.details()
        assert reached(cluster) == {"parameters": 1}
