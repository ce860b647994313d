"""Workers of stock gRPC with stages of an invented model: what they send, what they are sent, what is refused."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from protos import jobs_pb2 as jobs
from tests.support.cluster.bits import gpt_config, spec_of
from tests.support.cluster.daemon import eventually
from tests.support.cluster.harness import Cluster
from tests.support.cluster.stock_peers import CHUNK_ELEMENTS
from tests.support.cluster.stock_stages import (
    ELEMENTS,
    MICRO_BATCHES,
    SHARED,
    StageWorker,
    gradient_of,
    initial,
)

STEPS = 2
RATE = 0.5
WIRE_BYTES = 2


def spec(tmp_path: Path, corpus: Path) -> str:
    config = gpt_config(
        corpus,
        project_name="staged",
        max_steps=STEPS,
        gradient_accumulation_steps=MICRO_BATCHES,
        use_clip_grad_norm=False,
        optimizer={"type": "SGD", "lr": RATE, "momentum": 0.0, "weight_decay": 0.0},
        validation_batches=3,
        validation_batch_size=1,
        wire_dtype="bfloat16",
    )
    config["transformer_config"] = {"model_type": "invented:Model", "num_blocks": 2}
    split = {"blocks_per_rank": {0: 1, 1: 1}, "schedule": "gpipe"}
    hosts = {"enabled": True, "num_workers": 2, "pipeline_parallel_config": split}
    return spec_of(tmp_path, config | {"multihost_config": hosts})


def expected_weights() -> np.ndarray[Any, np.dtype[np.float32]]:
    mean = gradient_of(0, MICRO_BATCHES) / MICRO_BATCHES
    return initial() - np.float32(RATE * STEPS) * mean


def check_result(ended: jobs.Job) -> None:
    assert ended.state == jobs.SUCCEEDED, ended
    (saved,) = load_file(Path(ended.checkpoint) / "model.safetensors").values()
    np.testing.assert_array_equal(saved.reshape(-1), expected_weights())
    assert ended.loss == 1.5, "the mean of the micro-batches' losses, 0 to 3"
    assert ended.validation_loss == 2.0, "the token-weighted mean of 1, 2 and 3"


@pytest.mark.parametrize(
    ("tiers", "shards"),
    [(2, 0), pytest.param(3, 0, marks=pytest.mark.long), pytest.param(2, 2, marks=pytest.mark.long)],
)
def test_a_pipeline_carries_each_parameter_once_each_way(
    tmp_path: Path, corpus: Path, tiers: int, shards: int
) -> None:
    with Cluster(tmp_path, tiers=tiers, shards=shards) as cluster, ExitStack() as stack:
        address = cluster.aggregator.address
        workers = [stack.enter_context(StageWorker(address, f"stage-{number}")) for number in range(2)]
        for worker in workers:
            worker.start()
        job = cluster.submit(spec(tmp_path, corpus))
        check_result(cluster.finish(job))
        versions, shared = STEPS + 1, sum(stop - start for runs in SHARED for start, stop in runs)
        assert sum(worker.received for worker in workers) == versions * (ELEMENTS + shared)
        exact = expected_weights().astype(ml_dtypes.bfloat16).astype(np.float32)
        for worker in workers:
            own = ~np.isnan(worker.weights)
            np.testing.assert_array_equal(worker.weights[own], exact[own])


@pytest.mark.long
@pytest.mark.parametrize("shards", [0, 2])
@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        ({"offset": 2 * CHUNK_ELEMENTS + 9}, "elements 1048585 to 1049575 of chunk 2 are no piece"),
        ({"index": 1}, "chunk 1: elements 1048586 to 1049576, expected some from 524288 to 1048576"),
        ({"elements": 989}, "chunk 2: payload of 1980 bytes, expected 1978"),
        ({"crc32c": 5}, "chunk 2: crc32c"),
    ],
)
def test_a_worker_that_sends_what_is_no_piece_of_its_parts_is_replaced(
    tmp_path: Path, corpus: Path, harm: dict[str, Any], reason: str, shards: int
) -> None:
    with Cluster(tmp_path, shards=shards) as cluster, ExitStack() as stack:
        address = cluster.aggregator.address
        workers = [stack.enter_context(StageWorker(address, f"stage-{number}")) for number in range(3)]
        workers[1].harm = harm
        for number, worker in enumerate(workers):
            worker.start()
            cluster.wait_workers(number + 1)
        ended = cluster.finish(cluster.submit(spec(tmp_path, corpus)))
        check_result(ended)
        assert reason in eventually(lambda: workers[1].error, "the end of the second worker's streams")
        assert not workers[0].error and not workers[2].error
