"""The code of jobs' own models, on real daemons: edited, sent, kept over restarts, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protos import jobs_pb2 as jobs
from services.config.job import JobConfig
from services.config.job_parts import CodeConfig
from services.files.code_archive import hash_archive, pack_code
from services.transport.access.permissions import CallerKind
from tests.support.certificates import make_certificate, make_certificates
from tests.support.cluster.bits import spec_of, write_config
from tests.support.cluster.daemon import LIMIT_SECONDS, eventually, tiermesh, tls_flags
from tests.support.cluster.harness import Cluster
from tests.support.cluster.own_code import noted_config, read_notes, write_model

ALLOW = ("--allow-models", "noted")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that workers import from, with version 1 of the model."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
    return write_model(tmp_path / "installed", 1)


def submit(cluster: Cluster, *arguments: object, certificate: str = "") -> tuple[int, str, str]:
    """Run `tiermesh submit`; return its exit code, the job's id and the last line of its errors."""
    address = ("--aggregator", cluster.to_aggregator.address)
    done = tiermesh("submit", *arguments, "--json", *address)
    result = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}
    return done.returncode, result.get("job", ""), (done.stderr.splitlines() or [""])[-1]


# ---- installed code ----


def test_a_job_gets_edited_code_without_a_restart_and_keeps_it_over_one(
    tmp_path: Path, corpus: Path, installed: Path
) -> None:
    notes = [tmp_path / f"notes-{number}" for number in range(3)]
    specs = [spec_of(tmp_path, noted_config(corpus, each)) for each in notes]
    with Cluster(tmp_path / "cluster", steps=2) as cluster:
        worker = cluster.start_worker(*ALLOW)
        first = cluster.submit(specs[0])
        cluster.wait_step(first, 2)
        write_model(installed, 2)
        second = cluster.submit(specs[1])
        cluster.stub.SetPriority(jobs.PriorityRequest(job=second, priority=5), timeout=LIMIT_SECONDS)
        cluster.allow_steps(None)
        cluster.finish(second)
        cluster.finish(first)
        assert set(read_notes(notes[0])) == {1} and len(read_notes(notes[0])) == 2, "it was preempted"
        assert read_notes(notes[1]) == [2]
        cluster.allow_steps(2)
        third = cluster.submit(specs[2])
        cluster.wait_step(third, 2)
        write_model(installed, 3)
        worker.kill()
        cluster.allow_steps(None)
        worker.start()
        cluster.finish(third)
        assert read_notes(notes[2]) == [2, 2]


def test_a_worker_with_other_files_is_refused_by_name(tmp_path: Path, corpus: Path, installed: Path) -> None:
    with Cluster(tmp_path / "cluster", steps=2) as cluster:
        cluster.start_worker(*ALLOW, "--cache-dir", tmp_path / "cache-1")
        job = cluster.submit(spec_of(tmp_path, noted_config(corpus, tmp_path / "notes")))
        cluster.wait_step(job, 2)
        write_model(installed, 2)
        cluster.start_worker(*ALLOW, "--cache-dir", tmp_path / "cache-2")

        def refusal() -> str:
            return next((each.detail for each in cluster.status().workers if each.name == "worker-2"), "")

        detail = eventually(lambda: text if "own model" in (text := refusal()) else "", "the refusal")
        assert "own code noted_parts.py is '" in detail and "', the job's is '" in detail
        assert "--code FOLDER" in detail
        cluster.allow_steps(None)
        cluster.finish(job)
        assert read_notes(tmp_path / "notes") == [1, 2], "it was built, and computed nothing"


# ---- code that is sent ----


def test_code_that_is_sent_runs_as_it_was_when_it_was_submitted(tmp_path: Path, corpus: Path) -> None:
    code = write_model(tmp_path / "code", 1)
    with Cluster(tmp_path / "cluster", steps=2) as cluster:
        worker = cluster.start_worker("--accept-code")
        job_file = write_config(tmp_path, noted_config(corpus, tmp_path / "notes-1"))
        exit_code, first, error = submit(cluster, job_file, "--code", code)
        assert exit_code == 0, error
        cluster.wait_step(first, 2)
        write_model(code, 2)
        worker.kill()
        cluster.allow_steps(None)
        worker.start()
        cluster.finish(first)
        assert read_notes(tmp_path / "notes-1") == [1, 1], "also after a restart"
        job_file = write_config(tmp_path, noted_config(corpus, tmp_path / "notes-2"))
        cluster.finish(submit(cluster, job_file, "--code", code, "--no-upload")[1])
        assert read_notes(tmp_path / "notes-2") == [2]


def test_workers_that_accept_no_code_refuse_it_and_others_train(tmp_path: Path, corpus: Path) -> None:
    code = write_model(tmp_path / "code", 1)
    job_file = write_config(tmp_path, noted_config(corpus, tmp_path / "notes"))
    with Cluster(tmp_path / "cluster", heartbeat_seconds=0.5) as cluster:
        cluster.start_worker(*ALLOW)
        job = submit(cluster, job_file, "--code", code)[1]
        eventually(lambda: cluster.job(job).state == jobs.FAILED, "the refusal")
        detail = cluster.job(job).detail
        assert (
            "--code: this worker imports no code that is sent with jobs" in detail
            and "--accept-code" in detail
        )
        assert not read_notes(tmp_path / "notes")
        cluster.start_worker("--accept-code", "--cache-dir", tmp_path / "cache")
        cluster.finish(submit(cluster, job_file, "--code", code)[1])
        assert read_notes(tmp_path / "notes") == [1]


@pytest.mark.parametrize("lie", ["garbage", "names", "missing", "module"])
def test_a_lying_archive_fails_its_job_alone(tmp_path: Path, corpus: Path, short_spec: str, lie: str) -> None:
    files = {"noted.py": b"", "noted_parts.py": b""}
    archive = pack_code({"other.py": b""} if lie == "module" else files)
    if lie == "garbage":
        archive = b"\x7fELF" + bytes(100)
    elif lie == "names":
        archive = archive.replace(b"noted.py", b"../ed.py")
    folder = tmp_path / "cluster" / "aggregator-state" / "files"
    with Cluster(tmp_path / "cluster", heartbeat_seconds=0.5) as cluster:
        cluster.start_worker("--accept-code")
        config = JobConfig.from_json(spec_of(tmp_path, noted_config(corpus, tmp_path / "notes")))
        code = CodeConfig(path="/etc", sha256=hash_archive(archive))
        if lie != "missing":  # as if a hostile client had uploaded it
            folder.mkdir(parents=True, exist_ok=True)
            (folder / code.sha256).write_bytes(archive)
        job = cluster.submit(config.model_copy(update={"code": code}).to_json())

        def told() -> str:
            return " ".join([cluster.job(job).detail, *(each.detail for each in cluster.status().workers)])

        reason = {
            "garbage": "--code: the archive of code has no line with its files",
            "names": "--code: ../ed.py: expected a name below the folder",
            "missing": "does not have the job's code any more; submit one with --code",
            "module": "noted can't be imported on this worker",
        }[lie]
        eventually(lambda: reason in told(), reason)
        assert not read_notes(tmp_path / "notes")
        if lie == "missing":
            cluster.stub.Cancel(jobs.CancelRequest(job=job), timeout=LIMIT_SECONDS)
        else:
            assert cluster.job(job).state == jobs.FAILED
        cluster.finish(cluster.submit(short_spec))


def test_code_is_sent_by_those_that_may(tmp_path: Path, corpus: Path) -> None:
    files = make_certificates(tmp_path)
    for name, kind in (("alice", CallerKind.PERSON), ("dora", CallerKind.DEVELOPER)):
        make_certificate(files, name, files / "authority.pem", kind)
    code = write_model(tmp_path / "code", 1)
    job_file = write_config(tmp_path, noted_config(corpus, tmp_path / "notes"))
    with Cluster(tmp_path / "cluster", certificates=files) as cluster:
        outcomes = {
            name: tiermesh(
                "submit",
                job_file,
                "--code",
                code,
                "--aggregator",
                cluster.aggregator.address,
                *tls_flags(files, name),
            )
            for name in ("alice", "dora", "admin")
        }
        assert [each.returncode for each in outcomes.values()] == [2, 0, 0], outcomes
        line = outcomes["alice"].stderr.splitlines()[-1]
        assert "a job that brings its code along: not allowed for person alice" in line
        assert "only for admin, developer" in line
