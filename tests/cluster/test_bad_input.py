"""Bad input on the wire gets a status and one line of error, while the running job continues."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from aggregator.storage.job_queue import JobQueue
from protos import cluster_pb2 as pb
from protos import jobs_pb2 as jobs
from protos.tensors_pb2 import BFLOAT16, GRADIENT, INITIAL_WEIGHTS, WEIGHTS, ChunkHeader
from services.config.job import JobConfig
from services.protocol.hello import PROTOCOL_RANGE
from services.tensors.layout import Layout
from tests.support.cluster.bits import bits, gpt_config, spec_of
from tests.support.cluster.daemon import LIMIT_SECONDS, eventually
from tests.support.cluster.harness import ENDED, Cluster
from tests.support.cluster.stock_files import ref_of, upload_file
from tests.support.cluster.stock_peers import CHUNK_ELEMENTS, StockAggregator, StockWorker, chunk

INVALID, PRECONDITION = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
ABORTED, EXHAUSTED = grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED
FIRST_CHUNK = np.zeros(CHUNK_ELEMENTS, np.float32)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a 3-tier cluster with one honest worker."""
    with Cluster(tmp_path_factory.mktemp("bad-input"), tiers=3, workers=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def job(cluster: Cluster, corpus: Path) -> str:
    """Submit an endless job of short steps: one micro-batch for each of two workers."""
    config = gpt_config(corpus, max_steps=100_000, gradient_accumulation_steps=2)
    job = cluster.submit(spec_of(cluster.folder, config))
    cluster.wait_step(job, 1)
    return job


@pytest.fixture(autouse=True)
def unharmed(cluster: Cluster, job: str) -> Iterator[None]:
    """Check after each test that the job makes progress, in the same generation and with the same worker connection."""
    before = cluster.job(job)
    disconnections = cluster.aggregator.log_text().count("worker worker-1 is gone")
    yield
    after = cluster.wait_step(job, cluster.job(job).step + 2)
    assert after.generation == before.generation
    assert cluster.aggregator.log_text().count("worker worker-1 is gone") == disconnections


@pytest.fixture
def rogue(cluster: Cluster) -> Iterator[StockWorker]:
    with StockWorker(cluster.aggregator.address, "rogue") as rogue:
        yield rogue


def refusal(stream: Any, code: grpc.StatusCode) -> str:
    """Return the line of error that ended the stream, and check its status."""
    found, line = stream.status()
    assert found is code, line
    assert line and "\n" not in line and "Traceback" not in line and "internal error" not in line
    return str(line)


LAYOUT_WITH_A_HOLE = json.dumps(
    [{"name": "w", "shape": [4], "offset": 8, "decays": True, "export_name": "w"}],
)


# ---- connecting ----


@pytest.mark.parametrize("first", ["heartbeat", "nothing", "an empty message"])
def test_the_first_message_must_be_hello(rogue: StockWorker, first: str) -> None:
    messages = {
        "heartbeat": [pb.WorkerMessage(heartbeat=pb.Heartbeat())],
        "an empty message": [pb.WorkerMessage()],
    }
    stream = rogue.attend(*messages.get(first, []))
    stream.finish()
    assert "the first message must be Hello" in refusal(stream, INVALID)


@pytest.mark.slow
def test_a_silent_peer_is_disconnected(rogue: StockWorker) -> None:
    assert "Hello, within 10 s" in refusal(rogue.attend(), INVALID)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"protocol": 99, "protocol_min": 99},
            f"worker rogue speaks protocol 99, this aggregator {PROTOCOL_RANGE}; upgrade this aggregator",
        ),
        ({"role": "optimizer"}, "rogue has role 'optimizer'"),
        ({"epoch_seen": 77}, "worker rogue has obeyed epoch 77, this aggregator's epoch is 1"),
        ({"shard_index": 1, "shard_count": 2}, "worker rogue asks for shard 1 of 2; expected shard 0 of 1"),
        ({"name": "worker-1"}, "a worker named worker-1 is connected already"),
    ],
)
def test_a_wrong_hello_is_refused(rogue: StockWorker, changed: dict[str, Any], line: str) -> None:
    assert line in refusal(rogue.attend(rogue.hello(**changed)), PRECONDITION)


def test_data_without_control(rogue: StockWorker) -> None:
    line = refusal(rogue.exchange(), PRECONDITION)
    assert f"worker incarnation '{rogue.incarnation}' has no control stream; open Attend first" in line


def test_a_newer_connection_of_the_same_process_replaces_the_older(rogue: StockWorker) -> None:
    rogue.join()
    older = rogue.control
    rogue.join()
    assert "replaced by a newer connection" in refusal(older, PRECONDITION)


def test_the_data_stream_ends_with_the_control_stream(cluster: Cluster, rogue: StockWorker) -> None:
    rogue.join()
    rogue.data.send(chunk(header(rogue, job="a sign of life"), FIRST_CHUNK))
    cluster.aggregator.wait_log("worker rogue: dropped a chunk: the chunk's job is 'a sign of life'")
    rogue.control.cancel()
    assert "its control stream ended" in refusal(rogue.data, grpc.StatusCode.UNAVAILABLE)


# ---- chunks ----


def header(rogue: StockWorker, **named: Any) -> ChunkHeader:
    fields = {
        "epoch": rogue.epoch,
        "generation": 1,
        "step": 1,
        "lease": 12345,
        "incarnation": rogue.incarnation,
        "kind": GRADIENT,
    }
    return ChunkHeader(**{**fields, **named})


def leased(rogue: StockWorker, cluster: Cluster, job: str) -> pb.Lease:
    """Let the rogue worker get a lease: it reports that it has built the job and loaded the weights."""
    join, layout = rogue.order("join"), layout_of(cluster, job)
    rogue.say(
        ready=pb.Ready(
            job=join.job,
            build=join.build,
            layout_hash=layout.hash,
            elements=layout.elements,
            evaluation_batches=cluster.job(job).claims[0].evaluation_batches,
            fingerprint=fingerprint(cluster, job),
            tokens_per_micro_batch=1,
        )
    )

    def look() -> pb.Lease | None:
        for each in rogue.data.drain():
            if each.header.index == 1:  # the last chunk of a version
                header = each.header
                rogue.say(
                    weights_loaded=pb.WeightsLoaded(job=job, generation=header.generation, step=header.step)
                )
        for command in rogue.control.drain():
            if command.WhichOneof("body") == "lease":
                return command.lease  # type: ignore[no-any-return]
        return None

    lease = eventually(look, "a lease for the rogue")
    assert lease is not None
    return lease


def layout_of(cluster: Cluster, job: str) -> Layout:
    state = json.loads((cluster.checkpoint(job, 0) / "state.json").read_text())
    return Layout.from_json(state["layout"])


def fingerprint(cluster: Cluster, job: str) -> dict[str, str]:
    with JobQueue(cluster.folder / "aggregator-state" / "queue.sqlite") as queue:
        claims = next(stored.job.claims for stored in queue.live_jobs() if stored.job.id == job)
    return dict(claims[0].fingerprint)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"index": 2}, "chunk 2: no such index, the layout has 2 chunks"),
        ({"offset": 4}, "chunk 0: offset 4, expected 0"),
        ({"elements": 5}, "chunk 0: 5 elements, expected 524288"),
        ({"dtype": BFLOAT16}, "chunk 0: dtype BFLOAT16, expected FLOAT32"),
        ({"dtype": 0}, "chunk 0: dtype DTYPE_UNSPECIFIED, expected FLOAT32"),
        ({"payload": b"\0" * 40}, "chunk 0: payload of 40 bytes, expected 2097152"),
        ({"crc32c": 1}, "expected 0x00000001: the message was damaged"),
        ({"own_crc32c": 2}, "expected 0x00000002; even this index may be wrong"),
    ],
)
def test_a_chunk_that_contradicts_itself(
    cluster: Cluster, job: str, rogue: StockWorker, changed: dict[str, Any], line: str
) -> None:
    rogue.join()
    lease = leased(rogue, cluster, job)
    index = changed.get("index", 0)
    identity = header(
        rogue, job=job, generation=lease.generation, step=lease.step, lease=lease.lease, index=index
    )
    rogue.data.send(chunk(identity, FIRST_CHUNK, **changed))
    refused = refusal(rogue.data, INVALID)
    assert line in refused
    version = f"generation {lease.generation}, step {lease.step}"
    assert refused.endswith(f"(GRADIENT of job '{job}', {version}, lease {lease.lease})"), "its coordinates"
    assert line in refusal(rogue.control, INVALID)
    cluster.aggregator.wait_log("worker rogue: refused a chunk: chunk")


@pytest.mark.long
def test_refused_chunks_never_reach_the_sum(tmp_path: Path, corpus: Path) -> None:
    """Check that the honest worker gets the leases of the dropped sender, and that the bits stay the same."""
    # Many more steps than the senders of bad chunks need, so that none of them comes after the end.
    spec = spec_of(corpus.parent, gpt_config(corpus, max_steps=40))
    with Cluster(tmp_path / "undisturbed", workers=1) as cluster:
        undisturbed = bits(cluster.finish(cluster.submit(spec)))
    bad: list[dict[str, Any]] = [{"crc32c": 1}, {"offset": 4}, {"dtype": BFLOAT16}, {"payload": b"\0" * 40}]
    with Cluster(tmp_path / "disturbed", tiers=3, workers=1) as cluster:
        job = cluster.submit(spec)
        cluster.wait_step(job, 1)
        for number, changed in enumerate(bad):
            with StockWorker(cluster.aggregator.address, f"rogue-{number}") as rogue:
                rogue.join()
                lease = leased(rogue, cluster, job)
                identity = header(
                    rogue, job=job, generation=lease.generation, step=lease.step, lease=lease.lease, index=0
                )
                rogue.data.send(chunk(identity, FIRST_CHUNK, **changed))
                refusal(rogue.data, INVALID)
        assert bits(cluster.finish(job)) == undisturbed


@pytest.mark.parametrize("garbage", [b"garbage", b"\xff" * 1000, b"\x0a\xff\xff\xff\xff\x0f", b"\x7a\x05ab"])
def test_bytes_that_are_not_a_chunk(rogue: StockWorker, garbage: bytes) -> None:
    rogue.join()
    raw = rogue.raw_exchange()
    raw.send(garbage)
    assert "is not a Chunk" in refusal(raw, INVALID)


def test_an_oversized_message(rogue: StockWorker) -> None:
    rogue.join()
    raw = rogue.raw_exchange()
    raw.send(bytes(4 * 1024 * 1024 + 1))
    refusal(raw, EXHAUSTED)


def test_bytes_that_are_no_control_message(rogue: StockWorker) -> None:
    stream = rogue._stream(rogue.channel.stream_stream("/tiermesh.Cluster/Attend"))
    stream.send(b"\xff\xff\xff")
    assert refusal(stream, INVALID) == "Attend: message 1, of 3 bytes, was damaged: expected a WorkerMessage"


def test_a_control_message_of_another_checksum(rogue: StockWorker) -> None:
    hello = rogue.hello()
    hello.own_crc32c = 1
    line = refusal(rogue.attend(hello), INVALID)
    assert line.startswith("Attend: message 1,") and line.endswith("expected 0x00000001")


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"job": "nobody"}, "the chunk's job is 'nobody', expected"),
        ({"epoch": 0}, "the chunk's epoch is 0, the aggregator's is 1"),
        ({"epoch": 9}, "the chunk's epoch is 9, the aggregator's is 1"),
        ({"step": 0}, "the chunk belongs to generation 1, step 0; the job is in generation 1 at step"),
        (
            {"step": 10**6},
            "the chunk belongs to generation 1, step 1000000; the job is in generation 1 at step",
        ),
        ({"generation": 0}, "the chunk belongs to generation 0, step 1; the job is in generation 1 at step"),
        ({"kind": WEIGHTS}, "the chunk's kind is 2, expected a gradient or initial weights"),
        ({"kind": INITIAL_WEIGHTS}, "the chunk has initial weights, but lease 12345"),
    ],
)
def test_a_stale_chunk_is_dropped_and_logged(
    cluster: Cluster, job: str, rogue: StockWorker, changed: dict[str, Any], line: str
) -> None:
    rogue.join()
    rogue.order("join")
    rogue.data.send(chunk(header(rogue, **{"job": job, **changed}), FIRST_CHUNK))
    cluster.aggregator.wait_log(f"worker rogue: dropped a chunk: {line}")
    assert not rogue.data.ended and not rogue.control.ended


def test_a_lease_that_another_worker_holds(cluster: Cluster, job: str, rogue: StockWorker) -> None:
    rogue.join()
    lease = leased(rogue, cluster, job)
    foreign = header(rogue, job=job, generation=lease.generation, step=lease.step, lease=lease.lease + 1000)
    rogue.data.send(chunk(foreign, FIRST_CHUNK))
    cluster.aggregator.wait_log(f"the chunk's lease is {lease.lease + 1000}, which this worker does not hold")
    assert not rogue.data.ended


# ---- control messages of workers ----


def test_a_fingerprint_that_differs_is_named(cluster: Cluster, job: str, rogue: StockWorker) -> None:
    rogue.join()
    join = rogue.order("join")
    found = {**fingerprint(cluster, job), "numpy": "0.9"}
    layout = layout_of(cluster, job)
    rogue.say(
        ready=pb.Ready(
            job=join.job,
            build=join.build,
            layout_hash=layout.hash,
            elements=layout.elements,
            evaluation_batches=cluster.job(job).claims[0].evaluation_batches,
            fingerprint=found,
        )
    )
    reason = rogue.order("leave").reason
    assert reason.startswith("fingerprint differs: numpy is '0.9', the job's is '")
    cluster.aggregator.wait_log(f"worker rogue takes no part in the job: {reason}")
    (status,) = [each for each in cluster.status().workers if each.name == "rogue"]
    assert (status.state, status.detail) == ("refused", reason)


def test_a_layout_that_differs_is_named(cluster: Cluster, job: str, rogue: StockWorker) -> None:
    rogue.join()
    join = rogue.order("join")
    own = cluster.job(job).claims[0]
    rogue.say(
        ready=pb.Ready(
            job=join.job,
            build=join.build,
            layout_hash="f" * 64,
            elements=own.elements,
            evaluation_batches=own.evaluation_batches,
            fingerprint=own.fingerprint,
        )
    )
    assert "the layout's hash is ffffffffffff, the job's is " in rogue.order("leave").reason


def test_orders_and_words_for_others_change_nothing(cluster: Cluster, job: str, rogue: StockWorker) -> None:
    """Send stale epochs, other jobs, unknown leases and messages of another kind."""
    rogue.join()
    rogue.order("join")  # before that, nothing that it says is about its job
    nonsense: list[dict[str, Any]] = [
        {"weights_loaded": pb.WeightsLoaded(job="nobody", step=3)},
        {"weights_loaded": pb.WeightsLoaded(job=job, generation=7, step=10**9)},
        {"computed": pb.Computed(job=job, lease=1, seconds=-1.0)},
        {"computed": pb.Computed(job=job, lease=2**60, seconds=float("nan"))},
        {"evaluated": pb.Evaluated(job=job, lease=3, losses=[pb.BatchLoss(index=2**31)])},
        {"description": pb.Description(job=job, lease=1, layout=ref_of(b"["))},
        {"failure": pb.Failure(job="nobody", reason="no")},
        {"hello": pb.Hello()},
    ]
    for body in nonsense:
        rogue.say(**body)
        rogue.control.send(pb.WorkerMessage(epoch=999, **body))
    rogue.say(failure=pb.Failure(job=job, reason="heard all of it"))
    cluster.aggregator.wait_log("worker rogue takes no part in the job: heard all of it")


# ---- calls of users ----


def test_requests_of_people(cluster: Cluster, job: str) -> None:
    stub = cluster.stub
    cases: list[tuple[Callable[..., Any], Any, grpc.StatusCode, str]] = [
        (stub.Get, jobs.JobRequest(job="nobody"), grpc.StatusCode.NOT_FOUND, "no job 'nobody'"),
        (stub.Cancel, jobs.CancelRequest(job="nobody"), grpc.StatusCode.NOT_FOUND, "no job 'nobody'"),
        (stub.Submit, jobs.SubmitRequest(spec_json="{"), INVALID, ""),
        (stub.Submit, jobs.SubmitRequest(spec_json="[]"), INVALID, ""),
        (stub.Submit, jobs.SubmitRequest(spec_json="{}"), INVALID, "model"),
    ]
    for call, request, code, text in cases:
        with pytest.raises(grpc.RpcError) as caught:
            call(request, timeout=LIMIT_SECONDS)
        assert (caught.value.code(), "\n" in caught.value.details()) == (code, False)
        assert text in caught.value.details()
    for call, request in (
        (stub.Watch, jobs.JobRequest(job="nobody")),
        (stub.Logs, jobs.LogsRequest(job="nobody")),
        (stub.Metrics, jobs.MetricsRequest(job="nobody")),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            list(call(request, timeout=LIMIT_SECONDS))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND, caught.value.details()
    for asked in (
        pb.CheckpointRequest(job="nobody", newest=True),
        pb.CheckpointRequest(job=job, step=10**6),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            stub.Checkpoint(asked, timeout=LIMIT_SECONDS)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND, caught.value.details()


# ---- the optimizer ----


@pytest.fixture
def intruder(cluster: Cluster) -> Iterator[StockAggregator]:
    assert cluster.optimizer is not None
    with StockAggregator(cluster.optimizer.address, "intruder") as intruder:
        yield intruder


def test_the_optimizer_wants_hello_first(intruder: StockAggregator) -> None:
    stream = intruder.attend(pb.OptimizerCommand(heartbeat=pb.Heartbeat()))
    assert "the first message must be Hello" in refusal(stream, INVALID)


@pytest.mark.parametrize(
    ("epoch", "changed", "code", "line"),
    [
        (0, {"cluster": "own"}, ABORTED, "aggregator intruder has epoch 0, this optimizer obeys epoch 1"),
        (1, {"cluster": "0" * 16}, PRECONDITION, "aggregator intruder belongs to cluster 00000000"),
        (
            1,
            {"protocol": 2, "protocol_min": 2},
            PRECONDITION,
            f"aggregator intruder speaks protocol 2, this optimizer {PROTOCOL_RANGE}",
        ),
        (1, {"role": "worker"}, PRECONDITION, "intruder has role 'worker'"),
    ],
)
def test_a_refusal_keeps_the_optimizer_with_its_aggregator(
    cluster: Cluster,
    intruder: StockAggregator,
    epoch: int,
    changed: dict[str, Any],
    code: grpc.StatusCode,
    line: str,
) -> None:
    assert cluster.optimizer is not None
    if changed.get("cluster") == "own":
        changed = {"cluster": (cluster.folder / "optimizer-state" / "cluster").read_text().strip()}
    before = cluster.optimizer.log_text().count("connected, epoch")
    assert line in refusal(intruder.attend(intruder.hello(epoch, **changed)), code)
    assert cluster.optimizer.log_text().count("connected, epoch") == before


def test_the_optimizer_wants_control_before_data(intruder: StockAggregator) -> None:
    assert "open Attend" in refusal(intruder.exchange(), PRECONDITION)


# ---- bad initial weights ----


BAD_LAYOUTS = ["[", "{}", '[{"name": "w"}]', LAYOUT_WITH_A_HOLE]


@pytest.mark.parametrize("tiers", [2, 3])
def test_an_invalid_layout_fails_the_job(tmp_path: Path, tiers: int, short_spec: str) -> None:
    with (
        Cluster(tmp_path, tiers=tiers) as cluster,
        StockWorker(cluster.aggregator.address, "rogue") as rogue,
    ):
        rogue.join()
        for layout in BAD_LAYOUTS:
            job = cluster.submit(short_spec)
            join = rogue.order("join")
            assert join.job == job
            config = JobConfig.from_json(short_spec)
            sizes = {
                "elements": config.parameters.number,
                "evaluation_batches": config.evaluation_batches or 0,
            }
            ref = upload_file(rogue.channel, layout.encode())
            rogue.say(ready=pb.Ready(job=job, build=join.build, layout_hash=ref.sha256, **sizes))
            lease = rogue.order("lease")
            rogue.say(description=pb.Description(job=job, lease=lease.lease, layout=ref))
            ended = cluster.wait(job, lambda each: each.state in ENDED, "its end")
            assert ended.state == jobs.FAILED
            assert "layout of the initial weights" in ended.detail and "\n" not in ended.detail
