"""Whatever texts a peer sends by whatever method, logs, metrics and commands of a real cluster show printable lines."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from protos import cluster_pb2, jobs_pb2
from services.config.load import load_job
from services.config.paths import REPOSITORY_ROOT as ROOT
from services.protocol.checksums import encode_with_checksum
from services.protocol.versions import PROTOCOL_MIN, PROTOCOL_VERSION
from tests.support.cluster.daemon import Daemon, tiermesh
from tests.support.cluster.harness import Cluster
from tests.support.hostile import HOSTILE, fill_texts, is_clean, variants

pytestmark = pytest.mark.long  # tests of the parts run in `make test`

ANSWER_SECONDS = 2.0
EPOCH = 1
"""Epoch of the first aggregator on a state dir."""
JOB = ROOT / "configs" / "training_configs" / "linear_regression.yaml"
ROLES = {"Cluster": "worker", "Optimizer": "aggregator"}
"""Roles that attend, by service."""


def ask(channel: grpc.Channel, method: Any) -> None:
    """Call a method that takes one request, with hostile texts in it."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    request = GetMessageClass(method.input_type)()
    fill_texts(request, HOSTILE)
    call: Any = (channel.unary_stream if method.server_streaming else channel.unary_unary)(path)
    try:
        reply = call(request.SerializeToString(), timeout=ANSWER_SECONDS)
        if method.server_streaming:
            list(reply)
    except grpc.RpcError as error:
        assert is_clean(error.details() or ""), error.details()


def attend(channel: grpc.Channel, method: Any, role: str, job: str) -> None:
    """Open a control stream for each kind of message about a job, with a hostile Hello that is accepted otherwise."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    messages: Iterator[Any] = variants(method.input_type, HOSTILE)
    for number, message in enumerate(messages):
        message.ClearField("own_crc32c")
        message.epoch = EPOCH
        body = getattr(message, message.WhichOneof("body"))
        if "job" in body.DESCRIPTOR.fields_by_name:
            body.job = job
        first: Any = GetMessageClass(method.input_type)()
        fill_texts(first.hello, HOSTILE)
        first.epoch = first.hello.epoch_seen = EPOCH
        first.hello.name = f"peer-{number}"  # hostile ones are refused: tests/services/protocol/test_hello.py
        first.hello.protocol, first.hello.protocol_min = PROTOCOL_VERSION, PROTOCOL_MIN
        first.hello.role, first.hello.incarnation = role, f"incarnation-{number}"
        for field in ("cluster", "external_job", "features", "host", "version"):  # refused, or given no job
            first.hello.ClearField(field)
        first.hello.shard_count = 1

        may_speak = threading.Event()  # of the job, which a worker serves once it is told to join it

        def send(
            contents: tuple[bytes, ...] = (encode_with_checksum(first), encode_with_checksum(message)),
            may_speak: threading.Event = may_speak,
        ) -> Iterator[bytes]:
            yield contents[0]
            may_speak.wait(ANSWER_SECONDS)
            yield contents[1]
            time.sleep(0.3)  # else the end of the stream might overtake the work on its messages

        try:
            for answer in channel.stream_stream(path)(send(), timeout=2 * ANSWER_SECONDS):
                if role != "worker" or method.output_type._concrete_class.FromString(answer).HasField("join"):
                    may_speak.set()
        except grpc.RpcError as error:
            assert is_clean(error.details() or ""), error.details()


def scrape(daemon: Daemon) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{daemon.metrics_port}/metrics", timeout=20) as reply:
        return str(reply.read().decode())


def test_no_text_of_a_peer_leaves_its_line(tmp_path: Path) -> None:
    with Cluster(tmp_path, tiers=3, workers=0) as cluster:
        served = {"Cluster": cluster.aggregator, "Jobs": cluster.aggregator, "Optimizer": cluster.optimizer}
        job = cluster.submit(load_job(JOB)[0].to_json())
        for file in (cluster_pb2, jobs_pb2):
            for service in file.DESCRIPTOR.services_by_name.values():
                with grpc.insecure_channel(served[service.name].address) as channel:
                    for method in service.methods:
                        if not method.client_streaming:
                            ask(channel, method)
                        elif method.name == "Attend":
                            attend(channel, method, ROLES[service.name], job)
        assert "owned" in cluster.aggregator.log_text(), "no text of a peer was logged, so this tests nothing"
        for daemon in {cluster.aggregator, cluster.optimizer}:
            text = daemon.log_text()
            assert is_clean(text)
            assert not any(line.startswith("injected") for line in text.splitlines())
            assert max(map(len, text.splitlines())) < 3000
            assert is_clean(scrape(daemon))
        where = ("--aggregator", cluster.aggregator.address)
        for command in (("jobs",), ("status",), ("status", "--json"), ("jobs", "--json")):
            done = tiermesh(*command, *where)
            assert is_clean(done.stdout) and is_clean(done.stderr)
