"""Workers whose certificates are by name, and that were started without `--advertise`: a person is told what to do."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest

from protos import jobs_pb2 as jobs
from services.transport.access.permissions import CallerKind
from services.transport.security import Security
from tests.support.certificates import make_certificate, make_certificates
from tests.support.cluster.bits import bits, deep_config, spec_of, split_config
from tests.support.cluster.daemon import LIMIT_SECONDS, eventually, tiermesh, tls_flags
from tests.support.cluster.harness import Cluster

STEPS = 4


@pytest.mark.long
def test_the_remedy_in_status_lets_the_job_go_on(tmp_path: Path, corpus: Path) -> None:
    config = deep_config(corpus, 2, tied=True, project_name="links", max_steps=STEPS)
    with Cluster(tmp_path / "whole", workers=1) as cluster:
        expected = bits(cluster.finish(cluster.submit(spec_of(tmp_path, split_config(config, ())))))
    files = make_certificates(tmp_path)
    make_certificate(files, "worker", files / "authority.pem", CallerKind.WORKER, hosts=["localhost"])
    person = Security(files / "person.pem", files / "person.key", files / "authority.pem")
    credentials = person.channel_credentials()
    assert credentials is not None
    with (
        Cluster(tmp_path / "split", workers=2, certificates=files, heartbeat_seconds=1.0) as cluster,
        grpc.secure_channel(cluster.aggregator.address, credentials) as channel,
    ):
        cluster.call_over(channel)
        cluster.wait_workers(2)
        job = cluster.submit(spec_of(tmp_path, split_config(config, (1, 1))))

        def find_remedy() -> str | None:
            shown = tiermesh(
                "status", "--aggregator", cluster.aggregator.address, *tls_flags(files, "person")
            )
            found = re.search(r"IP address mismatch.*; start worker (\S+) with --advertise", shown.stdout)
            return None if found is None else found[1]

        named = eventually(find_remedy, "the remedy in tiermesh status")
        worker = next(each for each in cluster.workers if each.name == named)
        worker.terminate()
        cluster.start_worker("--advertise", "localhost", name=worker.name)
        assert bits(cluster.finish(job)) == expected
        lines = [line.text for line in cluster.stub.Logs(jobs.LogsRequest(job=job), timeout=LIMIT_SECONDS)]
        assert any("IP address mismatch" in line and "with --advertise" in line for line in lines)
        assert sum(re.match(r"row \d+ is ready", line) is not None for line in lines) <= 5
