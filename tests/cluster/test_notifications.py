"""A target is told of a killed worker and of the end, over a webhook that is away and a killed aggregator."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from protos import jobs_pb2 as jobs
from tests.support.cluster.bits import STEPS, gpt_config, spec_of
from tests.support.cluster.daemon import eventually, tiermesh
from tests.support.cluster.harness import Cluster
from tests.support.webhook import Webhook, status, webhook


@pytest.mark.long  # tests/aggregator/notifications runs in `make test`
def test_a_target_is_told_of_deaths_and_of_the_end_once(tmp_path: Path, corpus: Path) -> None:
    with webhook() as hook:
        targets = tmp_path / "targets"
        targets.write_text(f"ops json {hook.url}\n")
        targets.chmod(0o600)
        options = ("--notify-targets", targets)
        folder = tmp_path / "cluster"
        with Cluster(folder, tiers=3, workers=2, steps=2, aggregator_options=options) as cluster:
            with pytest.raises(grpc.RpcError, match=r"notify: opz given, expected ops; correct it"):
                cluster.submit(spec_of(corpus.parent, gpt_config(corpus, notify="opz")))
            cluster.wait_workers(2)
            job = cluster.submit(spec_of(corpus.parent, gpt_config(corpus, notify="ops")))
            cluster.wait_step(job, 2)
            cluster.workers[1].kill()
            (lost,) = hook.take(1)
            assert (lost["event"], lost["job"], lost["state"]) == ("worker_lost", job, "running")
            assert "worker worker-2 is gone" in lost["text"]

            hook.answers += [status(503)] * 1000
            ended = cluster.finish(job)
            assert ended.state == jobs.SUCCEEDED
            (refused,) = hook.take(1)
            cluster.aggregator.kill()
            while not hook.received.empty():  # further attempts
                assert hook.take(1) == [refused]
            hook.answers.clear()
            cluster.start_aggregator()
            assert hook.take(1) == [refused]
            assert (refused["event"], refused["step"]) == ("ended", STEPS)

            waiting = folder / "aggregator-state" / "notifications" / "ops.json"
            eventually(lambda: waiting.read_text() == '{"waiting": [], "told_steps": {}}', "nothing to wait")
            shown = tiermesh("status", job, "--json", "--aggregator", cluster.to_aggregator.address)
            assert shown.returncode == 0 and Webhook.SECRET not in shown.stdout + shown.stderr
        assert hook.received.empty(), "nothing is told twice"
        for path in folder.rglob("*"):
            assert not path.is_file() or Webhook.SECRET.encode() not in path.read_bytes(), path
