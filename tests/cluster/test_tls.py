"""A cluster with mutual TLS on all connections."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.certificates import make_authority, make_certificate
from tests.support.cluster.bits import STEPS, Bits, gpt_config, write_config
from tests.support.cluster.harness import Cluster, Daemon, tiermesh


def flags(cert: Path, key: Path, ca: Path) -> tuple[object, ...]:
    return ("--tls-cert", cert, "--tls-key", key, "--tls-ca", ca)


@pytest.mark.parametrize("tiers", [pytest.param(2, marks=pytest.mark.long), 3])
def test_a_job_end_to_end(tmp_path: Path, tiers: int, corpus: Path, undisturbed: Bits) -> None:
    authority, stranger = make_authority(tmp_path, "authority"), make_authority(tmp_path, "stranger")
    tls = flags(*make_certificate(tmp_path, "daemon", authority), authority)
    foreign = flags(*make_certificate(tmp_path, "foreign", stranger), authority)
    with Cluster(tmp_path, tiers=tiers, workers=2, options=tls) as cluster:
        address = ("--aggregator", cluster.aggregator.address)
        config = write_config(corpus.parent, gpt_config(corpus))
        done = tiermesh("submit", config, "--follow", "--json", *address, *tls)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        assert (result["step"], result["model_sha256"]) == (STEPS, undisturbed.model_sha256)

        for others in ((), foreign):
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
