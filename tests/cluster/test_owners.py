"""Owners of jobs: who submitted and who cancelled is on record, and only owners and admins cancel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.transport.access.permissions import CallerKind
from tests.support.certificates import make_certificate, make_certificates
from tests.support.cluster.bits import gpt_config, write_config
from tests.support.cluster.daemon import tiermesh, tls_flags
from tests.support.cluster.harness import Cluster

pytestmark = pytest.mark.long  # tests of the parts run in `make test`


def test_only_owners_and_admins_cancel_and_all_is_on_record(tmp_path: Path, corpus: Path) -> None:
    files = make_certificates(tmp_path)
    for name, kind in (
        ("alice", CallerKind.PERSON),
        ("bob", CallerKind.PERSON),
        ("root", CallerKind.ADMIN),
    ):
        make_certificate(tmp_path, name, files / "authority.pem", kind)
    config = write_config(corpus.parent, gpt_config(corpus))

    with Cluster(tmp_path, certificates=files) as cluster:

        def run(person: str, *words: object) -> tuple[int, dict[str, Any], str]:
            address = ("--aggregator", cluster.aggregator.address)
            done = tiermesh(*words, "--json", *address, *tls_flags(files, person))
            return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr

        jobs = []
        for person in ("alice", "alice", "bob"):
            code, result, errors = run(person, "submit", config)
            assert code == 0, errors
            jobs.append(str(result["job"]))
        listed = run("bob", "jobs")[1]["jobs"]
        assert {each["job"]: each["owner"] for each in listed} == dict(
            zip(jobs, ("alice", "alice", "bob"), strict=True)
        )
        for method, *words in (
            ("Cancel", "cancel", jobs[0]),
            ("Pause", "pause", jobs[1]),
            ("Resume", "resume", jobs[1]),
            ("SetPriority", "priority", jobs[1], -1),
        ):
            code, _, errors = run("bob", *words)
            assert code == 2
            assert f"{method} of another owner's job: not allowed for person bob" in errors
        raised = ("training_config.priority=1", "--no-upload")
        for words in (("priority", jobs[1], 1), ("submit", config, *raised)):
            code, _, errors = run("alice", *words)
            assert code == 2 and "a priority above 0: not allowed for person alice" in errors
        for person, priority in (("alice", -1), ("root", 1)):
            code, result, errors = run(person, "priority", jobs[1], priority)
            assert (code, result["priority"]) == (0, priority), errors
        assert run("alice", "pause", jobs[1])[1]["state"] == "paused"
        assert run("root", "resume", jobs[1])[0] == 0
        for person, job in (("alice", jobs[0]), ("root", jobs[1]), ("bob", jobs[2])):
            code, result, errors = run(person, "cancel", job)
            assert (code, result["state"]) == (0, "cancelled"), errors

        printed = run("bob", "logs", jobs[1])[2]
        assert "submitted by alice" in printed
        assert "cancelled by root" in printed
        log = cluster.aggregator.log_text()
        assert f"job {jobs[0]}: submitted by person alice (certificate " in log
        assert f"job {jobs[1]}: cancelled by admin root (certificate " in log


def test_only_owners_and_admins_prune_and_all_is_on_record(tmp_path: Path, corpus: Path) -> None:
    files = make_certificates(tmp_path)
    for name, kind in (
        ("alice", CallerKind.PERSON),
        ("bob", CallerKind.PERSON),
        ("root", CallerKind.ADMIN),
    ):
        make_certificate(tmp_path, name, files / "authority.pem", kind)
    config = write_config(corpus.parent, gpt_config(corpus))

    with Cluster(tmp_path, certificates=files) as cluster:

        def run(person: str, *words: object) -> tuple[int, dict[str, Any], str]:
            address = ("--aggregator", cluster.aggregator.address)
            done = tiermesh(*words, "--json", *address, *tls_flags(files, person))
            return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr

        jobs = [str(run(person, "submit", config)[1]["job"]) for person in ("alice", "bob", "bob")]
        for person, job in zip(("alice", "bob", "bob"), jobs, strict=True):
            assert run(person, "cancel", job)[0] == 0
        code, _, errors = run("bob", "prune", jobs[0], "--yes")
        assert code == 2
        assert "Prune of another owner's job: not allowed for person bob" in errors
        for person, expected in (("bob", jobs[:0:-1]), ("root", jobs[::-1])):
            code, result, errors = run(person, "prune", "--keep", "0", "--dry-run")
            assert (code, [each["job"] for each in result["pruned"]]) == (0, expected), errors
        assert run("alice", "prune", jobs[0], "--yes")[0] == 0
        assert run("root", "prune", jobs[1], "--yes")[0] == 0
        assert [each["job"] for each in run("bob", "jobs")[1]["jobs"]] == jobs[2:]
        log = cluster.aggregator.log_text()
        assert f"job {jobs[0]}: jobs pruned by person alice (certificate " in log
        assert f"job {jobs[1]}: jobs pruned by admin root (certificate " in log
