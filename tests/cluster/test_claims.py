"""Workers with certificates that are bound to their names, of which the first one lies about what it computes with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.transport.access.permissions import CallerKind
from tests.support.certificates import make_certificate, make_certificates
from tests.support.cluster import held_steps
from tests.support.cluster.bits import Bits, gpt_config, write_config
from tests.support.cluster.daemon import Daemon, eventually, tiermesh, tls_flags
from tests.support.cluster.harness import Cluster

LIAR = "tests.support.cluster.other_numpy_worker"
HONEST = ("honest-1", "honest-2")


class BoundCluster:
    """A cluster whose workers have a certificate each.

    Args:
        cluster: the cluster, with an aggregator.
        files: folder of the certificates.
    """

    def __init__(self, cluster: Cluster, files: Path) -> None:
        self.cluster = cluster
        self._files = files
        self._address = ("--aggregator", cluster.to_aggregator.address)

    def start_worker(self, name: str, module: str = "cli.main") -> Daemon:
        """Start a worker; its job makes no more steps than the cluster allows."""
        make_certificate(
            self._files, name, self._files / "authority.pem", CallerKind.WORKER, bound_names=(name,)
        )
        settings = {held_steps.VARIABLE: str(self.cluster.folder / "steps")}
        options = (*self._address, *tls_flags(self._files, name))
        worker = Daemon("worker", name, self.cluster.folder, *options, module=module, settings=settings)
        self.cluster.daemons.append(worker)
        return worker

    def call(self, *words: object, person: str = "person") -> tuple[int, dict[str, Any], str]:
        """Return the exit code, the result and the text of a command."""
        done = tiermesh(*words, "--json", *self._address, *tls_flags(self._files, person))
        return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr

    def states(self) -> dict[str, str]:
        """Return the workers' states."""
        return {each["name"]: each["state"] for each in self.call("status")[1]["workers"]}

    def job(self, job: str) -> dict[str, Any]:
        """Return a job."""
        return self.call("status", job)[1]

    def wait_refused(self, *names: str) -> None:
        """Wait until these workers are refused."""
        eventually(
            lambda: all(self.states().get(name) == "refused" for name in names), f"{names} to be refused"
        )

    def finish(self, job: str) -> dict[str, Any]:
        """Let the job make all its steps, and return its end."""
        self.cluster.allow_steps(None)
        eventually(lambda: self.job(job)["state"] != "running", "the job's end")
        return self.job(job)


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[BoundCluster]:
    """Start a cluster whose jobs make no step yet."""
    files = make_certificates(tmp_path)
    make_certificate(files, "bob", files / "authority.pem", CallerKind.PERSON)
    with Cluster(
        tmp_path / "cluster", tiers=3, certificates=files, heartbeat_seconds=1.0, steps=0
    ) as cluster:
        yield BoundCluster(cluster, files)


def submit(bound: BoundCluster, corpus: Path) -> str:
    code, result, errors = bound.call("submit", write_config(corpus.parent, gpt_config(corpus)))
    assert code == 0, errors
    return str(result["job"])


def test_a_liar_that_answers_first_and_leaves_keeps_nobody_out(
    bound: BoundCluster, corpus: Path, undisturbed: Bits
) -> None:
    job = submit(bound, corpus)
    liar = bound.start_worker("liar", LIAR)
    eventually(
        lambda: bound.states().get("liar") == "computing" and bound.job(job)["phase"] == "train", "its lease"
    )
    for name in HONEST:
        bound.start_worker(name)
    bound.wait_refused(*HONEST)
    claims = bound.job(job)["claims"]
    assert [(each["workers"], each["fingerprint"]["numpy"] == "0.9") for each in claims] == [
        (["liar"], True),
        (claims[1]["workers"], False),
    ]
    liar.kill()
    ended = bound.finish(job)
    assert (ended["state"], ended["model_sha256"]) == ("succeeded", undisturbed.model_sha256), ended["detail"]
    assert sorted(ended["claims"][0]["workers"]) == sorted(HONEST) and ended["excluded"] is None


@pytest.mark.long
def test_a_person_overrules_a_liar_that_has_made_steps(
    bound: BoundCluster, corpus: Path, undisturbed: Bits
) -> None:
    job = submit(bound, corpus)
    bound.start_worker("liar", LIAR)
    bound.cluster.allow_steps(2)
    eventually(lambda: bound.job(job)["step"] == 2, "two steps of the liar")
    bound.start_worker("honest-1")
    bound.wait_refused("honest-1")
    code, _, errors = bound.call("trust", job, "honest-1", person="bob")
    assert code == 2 and "Trust in another owner's job: not allowed for person bob" in errors
    code, _, errors = bound.call("trust", job, "nobody")
    assert code == 2 and "worker nobody: says nothing of job" in errors
    code, result, errors = bound.call("trust", job, "honest-1")
    assert (code, result["step"], list(result["excluded"])) == (0, 0, ["liar"]), errors
    bound.cluster.aggregator.kill()
    bound.cluster.start_aggregator()
    assert bound.call("trust", job, "honest-1")[0] == 0, "it is trusted already"
    ended = bound.finish(job)
    assert (ended["state"], ended["model_sha256"]) == ("succeeded", undisturbed.model_sha256), ended["detail"]
    assert list(ended["excluded"]) == ["liar"]
    log = bound.call("logs", job)[2]
    assert "worker honest-1 trusted by person" in log and "begins again with what worker honest-1" in log
