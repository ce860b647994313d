"""A worker of stock gRPC and protobuf with an invented model: the .proto files say all that a worker needs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from protos import cluster_pb2 as pb
from protos.jobs_pb2 import SUCCEEDED
from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32, INITIAL_WEIGHTS, WEIGHTS, ChunkHeader, DType
from services.tensors.layout import Layout
from tests.support.cluster.bits import sized_config, spec_of
from tests.support.cluster.harness import Cluster
from tests.support.cluster.stock_files import upload_file
from tests.support.cluster.stock_peers import CHUNK_ELEMENTS, WIRE_TYPES, StockWorker, chunk, gradient

ELEMENTS = CHUNK_ELEMENTS + 1000
CHUNKS = 2
STEPS = 3
RATE = 0.5
LAYOUT = Layout.build([("table", (ELEMENTS // 8, 8), True, "table.weight", False)])


def initial() -> np.ndarray:
    return np.arange(ELEMENTS, dtype=np.float32) / 1024


def gradient_of(index: int) -> np.ndarray:
    """Return the gradient of a micro-batch. Sums of these are exact in float32 in any order."""
    return np.full(ELEMENTS, 2.0**index, np.float32)


def work(worker: StockWorker, spec_json: str, dtype: DType) -> np.ndarray:
    """Do all leases until the job ends, in this wire type, and return the last weights received."""
    weights = initial()
    for kind, order in worker.orders():
        if kind == "join":
            assert json.loads(order.spec_json) == json.loads(spec_json)
            worker.say(
                ready=pb.Ready(
                    job=order.job,
                    build=order.build,
                    layout_hash=LAYOUT.hash,
                    elements=ELEMENTS,
                    evaluation_batches=json.loads(spec_json)["evaluation_batches"],
                    fingerprint={"backend": "stock"},
                    tokens_per_micro_batch=8,
                )
            )
        elif kind == "lease" and order.phase == pb.INITIALISE:
            layout = upload_file(worker.channel, LAYOUT.dumps().encode())
            description = pb.Description(job=order.job, lease=order.lease, layout=layout)
            worker.say(description=description)
        elif kind == "resend":  # Chunks can't be parsed before the layout is known.
            for index in [
                index for each in order.chunks for index in range(each.first, each.first + each.count)
            ]:
                header = ChunkHeader(
                    job=order.job,
                    epoch=worker.epoch,
                    lease=order.lease,
                    incarnation=worker.incarnation,
                    kind=INITIAL_WEIGHTS,
                    index=index,
                )
                worker.data.send(chunk(header, initial()))
            weights = receive_weights(worker, order.job, 0, dtype)
        elif kind == "lease" and order.phase == pb.TRAIN:
            leaves = range(order.first, order.first + order.count)
            total = sum((gradient_of(leaf) for leaf in leaves), np.zeros(ELEMENTS, np.float32))
            for index in reversed(range(CHUNKS)):
                header = gradient(worker, order, index, [float(leaf) for leaf in leaves])
                header.dtype = dtype
                worker.data.send(chunk(header, total))
            worker.say(
                computed=pb.Computed(
                    job=order.job,
                    generation=order.generation,
                    step=order.step,
                    lease=order.lease,
                    seconds=0.1,
                )
            )
            # The worker's last lease of a step brings the weights of the next step.
            if order.first + order.count == 4:
                weights = receive_weights(worker, order.job, order.step + 1, dtype)
        elif kind == "lease" and order.phase == pb.EVALUATE:
            batches = range(order.first, order.first + order.count)
            losses = [pb.BatchLoss(index=index, sum=10.0 * (index + 1), tokens=10) for index in batches]
            worker.say(
                evaluated=pb.Evaluated(
                    job=order.job,
                    generation=order.generation,
                    step=order.step,
                    lease=order.lease,
                    losses=losses,
                )
            )
        elif kind == "leave":
            return weights
    raise AssertionError(worker.control.status())


def receive_weights(worker: StockWorker, job: str, step: int, dtype: DType) -> np.ndarray:
    """Receive all chunks of the next version, which must be that of `step`."""
    pieces = []
    for index in range(CHUNKS):
        received = worker.data.receive()
        header = received.header
        assert (header.job, header.epoch, header.kind, header.step) == (job, worker.epoch, WEIGHTS, step)
        assert (header.index, header.offset) == (index, index * CHUNK_ELEMENTS)
        assert header.dtype == dtype
        pieces.append(np.frombuffer(received.payload, WIRE_TYPES[dtype]))
        assert pieces[-1].size == header.elements
    worker.say(weights_loaded=pb.WeightsLoaded(job=job, generation=header.generation, step=step))
    return np.concatenate(pieces)


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(FLOAT32, marks=pytest.mark.long), pytest.param(BFLOAT16, marks=pytest.mark.long), FLOAT16],
)
def test_a_stock_worker_trains_an_invented_model(tmp_path: Path, dtype: DType) -> None:
    config = sized_config(
        *LAYOUT.entries[0].shape,
        max_steps=STEPS,
        gradient_accumulation_steps=4,
        optimizer={"type": "SGD", "lr": RATE, "momentum": 0.0, "weight_decay": 0.0},
        validation_batch_size=4,
        wire_dtype=DType.Name(dtype).lower(),
    )
    spec_json = spec_of(tmp_path, config)
    with Cluster(tmp_path, tiers=3) as cluster, StockWorker(cluster.aggregator.address, "stock") as worker:
        worker.join()
        job = cluster.submit(spec_json)
        received = work(worker, spec_json, dtype)
        ended = cluster.job(job)
        assert ended.state == SUCCEEDED, ended
        mean = sum(gradient_of(index) for index in range(4)) / 4
        expected = initial() - np.float32(RATE * STEPS) * mean
        np.testing.assert_array_equal(received, expected.astype(WIRE_TYPES[dtype]))
        (saved,) = load_file(Path(ended.checkpoint) / "model.safetensors").values()
        np.testing.assert_array_equal(saved.reshape(-1), expected)
        assert ended.loss == 1.5, "the mean of the micro-batches' losses, 0 to 3"
        assert ended.validation_loss == 2.0, "the token-weighted mean of 1, 2 and 3"
