"""Clusters with mutual TLS on all connections, with roles in the certificates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.transport.permissions import CallerKind
from tests.support.certificates import make_authority, make_certificate, make_certificates
from tests.support.cluster.bits import STEPS, Bits, gpt_config, write_config
from tests.support.cluster.harness import Cluster, Daemon, tiermesh, tls_flags


@pytest.mark.parametrize(
    ("tiers", "shards"),
    [pytest.param(2, 0, marks=pytest.mark.long), (2, 2), (3, 0)],
    ids=["2", "shards", "3"],
)
def test_a_job_end_to_end(tmp_path: Path, tiers: int, shards: int, corpus: Path, undisturbed: Bits) -> None:
    files = make_certificates(tmp_path)
    stranger = make_authority(tmp_path, "stranger")
    make_certificate(tmp_path, "foreign", stranger, CallerKind.PERSON)
    over_the_network = ("--no-shared-memory",)
    with Cluster(
        tmp_path, tiers=tiers, shards=shards, workers=2, certificates=files, options=over_the_network
    ) as cluster:
        address = ("--aggregator", cluster.aggregator.address)
        config = write_config(corpus.parent, gpt_config(corpus))
        done = tiermesh("submit", config, "--follow", "--json", *address, *tls_flags(files, "person"))
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        assert (result["step"], result["model_sha256"]) == (STEPS, undisturbed.model_sha256)

        for others in ((), tls_flags(files, "foreign")):
            refused = tiermesh("jobs", "--timeout-seconds", "5", *address, *others)
            assert refused.returncode == 1
            assert "can't be reached" in refused.stderr
        intruder = Daemon("worker", "intruder", tmp_path, *address)
        try:
            intruder.wait_log("; trying again")
            assert intruder.terminate() == 0
        finally:
            intruder.close()
        assert "intruder" not in cluster.aggregator.log_text()


def test_a_stolen_certificate_of_a_worker_or_a_person_does_only_what_its_role_may(
    tmp_path: Path, corpus: Path
) -> None:
    files = make_certificates(tmp_path)
    config = write_config(corpus.parent, gpt_config(corpus))
    with Cluster(tmp_path, tiers=3, certificates=files) as cluster:
        address = ("--aggregator", cluster.aggregator.address)
        for name in ("worker", "shard", "optimizer", "metrics", "aggregator"):
            for words in (("submit", config), ("jobs",), ("cancel", "x"), ("status",)):
                refused = tiermesh(*words, *address, *tls_flags(files, name))
                assert refused.returncode == 2
                assert f"not allowed for {name} {name}" in refused.stderr
        assert tiermesh("jobs", *address, *tls_flags(files, "person")).returncode == 0
        for name in ("person", "metrics", "optimizer"):
            intruder = Daemon("worker", f"intruder-{name}", tmp_path, *address, *tls_flags(files, name))
            try:
                intruder.wait_log(f"not allowed for {name} {name}")
            finally:
                intruder.close()
        assert not json.loads(
            tiermesh("status", "--json", *address, *tls_flags(files, "admin")).stdout.splitlines()[-1]
        )["workers"]
