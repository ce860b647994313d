"""Clusters with mutual TLS on all connections, with roles in the certificates."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos import cluster_pb2 as pb
from protos.pipeline_pb2 import LinkState
from services.protocol.checksums import encode_with_checksum
from services.protocol.envelope import wrap
from services.protocol.hello import Role, make_hello
from services.transport.access.permissions import CallerKind
from services.transport.http2.client import open_stream
from services.transport.links import INCARNATION_KEY
from services.transport.security import Security
from services.transport.server import open_channel
from tests.support.certificates import make_authority, make_certificate, make_certificates
from tests.support.cluster.bits import STEPS, Bits, gpt_config, write_config
from tests.support.cluster.daemon import Daemon, tiermesh, tls_flags
from tests.support.cluster.harness import Cluster
from tests.support.ports import free_port
from tests.support.services import OWN_METHODS
from worker.pipeline.messages import encode_state
from worker.pipeline.streams import PASS_METHOD

ATTEND, EXCHANGE = "/tiermesh.Cluster/Attend", "/tiermesh.Cluster/Exchange"
MEASURE_LINK = "/tiermesh.Cluster/MeasureLink"
PIPELINE = {"/tiermesh.Pipeline/Pass", "/tiermesh.Pipeline/MeasureLink"}
TENSOR_PORT_ALONE = {("worker", method) for method in PIPELINE}


@pytest.mark.parametrize(
    ("tiers", "shards"),
    [*(pytest.param(2, shards, marks=pytest.mark.long) for shards in (0, 2)), (3, 0)],
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
            expected = "refuses a connection with this certificate" if others else "speaks TLS: give --tls-ca"
            assert f"{cluster.aggregator.address} {expected}" in refused.stderr
        intruder = Daemon("worker", "intruder", tmp_path, *address)
        try:
            intruder.wait_log(
                "speaks TLS: give --tls-ca, and --tls-cert with --tls-key or a token; trying again"
            )
            assert intruder.terminate() == 0
        finally:
            intruder.close()
        assert "intruder" not in cluster.aggregator.log_text()


@pytest.mark.long
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
        # A daemon with another role's certificate says so itself; an attacker's would not.
        intruder = Daemon("worker", "intruder", tmp_path, *address, *tls_flags(files, "person"))
        try:
            assert intruder.ended() == 2
            assert "is for person person, but this is the daemon of role worker" in intruder.log_text()
        finally:
            intruder.close()


@pytest.mark.long
def test_a_stolen_certificate_of_a_worker_tries_every_call_of_every_daemon(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    streams = {ATTEND, EXCHANGE, MEASURE_LINK}
    reachable = {
        "aggregator": streams | {method for method in OWN_METHODS if method.startswith("/tiermesh.Files/")},
        "optimizer": set(),
        "shard": streams,
        "worker": PIPELINE,
    }

    async def call(daemon: Daemon, method: str) -> grpc.StatusCode:
        async with open_channel(daemon.address, worker_security(files)) as channel:
            stream = channel.unary_stream(method)(b"", timeout=20)
            with suppress(grpc.aio.AioRpcError):
                await stream.read()
            stream.cancel()
            return await stream.code()

    async def call_tensor_port(daemon: Daemon, method: str) -> grpc.StatusCode:
        address = daemon.address.rpartition(":")[0] + f":{daemon.tensor_port}"
        stream = await open_stream(address, worker_security(files), method)
        try:
            return await asyncio.wait_for(stream.code(), 20)
        except asyncio.TimeoutError:
            return grpc.StatusCode.OK  # it waits for more
        finally:
            stream.cancel()

    async def attack(daemons: dict[str, Daemon]) -> None:
        for kind, daemon in daemons.items():
            for method in OWN_METHODS:
                outcomes = [] if (kind, method) in TENSOR_PORT_ALONE else [await call(daemon, method)]
                if method.endswith(("/Exchange", "/MeasureLink", "/Pass")):
                    outcomes.append(await call_tensor_port(daemon, method))
                for outcome in outcomes:
                    denied = outcome in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)
                    assert denied == (method not in reachable[kind]), (kind, method, outcome)

    with (
        Cluster(tmp_path / "3", tiers=3, workers=1, certificates=files) as three,
        Cluster(tmp_path / "2", shards=1, certificates=files) as two,
    ):
        assert three.optimizer is not None
        asyncio.run(attack({"aggregator": three.aggregator, "optimizer": three.optimizer}))
        asyncio.run(attack({"worker": three.workers[0]}))
        asyncio.run(attack({"aggregator": two.aggregator, "shard": two.shards[0]}))
        address = ("--aggregator", three.aggregator.address)
        jobs = tiermesh("jobs", "--json", *address, *tls_flags(files, "person"))
        assert json.loads(jobs.stdout.splitlines()[-1])["jobs"] == []


def test_a_stolen_certificate_takes_no_other_workers_name_and_streams(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    for name in ("w1", "w2"):
        make_certificate(files, name, files / "authority.pem", CallerKind.WORKER, bound_names=(name,))

    def show(name: str) -> Security:
        return Security(files / f"{name}.pem", files / f"{name}.key", files / "authority.pem")

    def hello(name: str) -> bytes:
        return encode_with_checksum(
            wrap(pb.WorkerMessage, 0, make_hello(Role.WORKER, name, incarnation=name))
        )

    async def attack(aggregator: Daemon) -> None:
        tensors = aggregator.address.rpartition(":")[0] + f":{aggregator.tensor_port}"
        metadata = ((INCARNATION_KEY, "w1"),)
        async with open_channel(aggregator.address, show("w1"), own_connection=True) as channel:
            victim = channel.stream_stream(ATTEND)()
            await victim.write(hello("w1"))
            assert await asyncio.wait_for(victim.read(), 20)

            async with open_channel(aggregator.address, show("w2"), own_connection=True) as other:
                thief = other.stream_stream(ATTEND)()
                await thief.write(hello("w1"))
                assert await asyncio.wait_for(thief.code(), 20) is grpc.StatusCode.PERMISSION_DENIED
                assert "worker w1 shows a certificate that is bound to w2" in await thief.details()
            stolen = await open_stream(tensors, show("w2"), EXCHANGE, metadata)
            assert await asyncio.wait_for(stolen.code(), 20) is grpc.StatusCode.PERMISSION_DENIED
            own = await open_stream(tensors, show("w1"), EXCHANGE, metadata)
            await asyncio.wait_for(own.initial_metadata(), 20)
            assert not victim.done(), "the worker itself goes on"
            for stream in (stolen, own):
                stream.cancel()
            victim.cancel()

    with Cluster(tmp_path, workers=0, certificates=files) as cluster:
        asyncio.run(attack(cluster.aggregator))


@pytest.mark.long
def test_a_person_with_a_token_submits_by_the_port_for_people(
    tmp_path: Path, corpus: Path, undisturbed: Bits
) -> None:
    files = make_certificates(tmp_path)
    tokens, mine = tmp_path / "tokens.txt", tmp_path / "mine.txt"
    issued = tiermesh("tokens", "issue", "bob", "--tokens", tokens, "--out", mine)
    assert issued.returncode == 0, issued.stderr
    people = f"127.0.0.1:{free_port()}"
    options = ("--tokens", tokens, "--people-listen", people)
    config = write_config(corpus.parent, gpt_config(corpus))
    with Cluster(tmp_path, workers=1, certificates=files, aggregator_options=options):
        how = ("--aggregator", people, "--tls-ca", files / "authority.pem")
        done = tiermesh("submit", config, "--follow", "--json", *how, "--token-file", mine)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["model_sha256"] == undisturbed.model_sha256
        refused = tiermesh("jobs", *how)
        assert refused.returncode == 2
        assert "neither a certificate nor a token was shown" in refused.stderr
        token_id = json.loads(
            tiermesh("tokens", "show", "--json", "--tokens", tokens).stdout.splitlines()[-1]
        )["tokens"][0]["id"]
        assert tiermesh("tokens", "revoke", token_id, "--tokens", tokens).returncode == 0
        refused = tiermesh("jobs", *how, "--token-file", mine)
        assert refused.returncode == 2
        assert "not known here, or was revoked" in refused.stderr


def worker_security(files: Path) -> Security:
    return Security(files / "worker.pem", files / "worker.key", files / "authority.pem")


@pytest.mark.long
def test_stages_exchange_arrays_by_tls_and_with_workers_alone(tmp_path: Path, corpus: Path) -> None:
    files = make_certificates(tmp_path)
    stages = {
        "enabled": True,
        "num_workers": 2,
        "pipeline_parallel_config": {"blocks_per_rank": {0: 1, 1: 1}},
    }

    async def open_pass(worker: Daemon, kind: str) -> grpc.StatusCode:
        address = f"127.0.0.1:{worker.tensor_port}"
        security = Security(files / f"{kind}.pem", files / f"{kind}.key", files / "authority.pem")
        stream = await open_stream(address, security, PASS_METHOD)
        try:
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it may be refused already
                await stream.write(encode_state(LinkState(job="x", row=1, stage=1, name="intruder")))
            return await asyncio.wait_for(stream.code(), 20)
        finally:
            stream.cancel()

    def run(cluster: Cluster, name: str, **hosts: Any) -> tuple[str, float]:
        config = gpt_config(corpus, project_name=name, max_steps=3, gradient_accumulation_steps=2) | hosts
        address = ("--aggregator", cluster.aggregator.address, *tls_flags(files, "person"))
        done = tiermesh("submit", write_config(tmp_path, config), "--follow", "--json", *address)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        return result["model_sha256"], result["loss"]

    over_the_network = ("--no-shared-memory",)
    with Cluster(
        tmp_path / "cluster", tiers=2, workers=2, certificates=files, options=over_the_network
    ) as cluster:
        for worker in cluster.workers:  # a worker that is late leaves all stages to the other
            worker.wait_log("connected to aggregator")
        assert run(cluster, "piped", multihost_config=stages) == run(cluster, "plain")
        assert "connected to worker worker-1 (stage 0)" in cluster.workers[1].log_text()
        for kind in ("aggregator", "optimizer", "shard", "person", "admin", "metrics"):
            outcome = asyncio.run(open_pass(cluster.workers[0], kind))
            assert outcome is grpc.StatusCode.PERMISSION_DENIED, (kind, outcome)
        assert asyncio.run(open_pass(cluster.workers[0], "worker")) is grpc.StatusCode.UNAVAILABLE
