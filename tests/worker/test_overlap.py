"""The forward pass starts with the first weights, waits for missing ones, and gives the same bits in every case."""

from __future__ import annotations

import hashlib
import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plane.lease_sums import LeaseSums
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import FLOAT32, WEIGHTS, ChunkHeader
from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig
from services.config.models import GPT2Config, LinearRegressionConfig, LlamaConfig
from services.protocol.versions import Version
from services.runtime.metrics import WorkerMetrics
from services.tensors.chunk_messages import pack_chunk
from services.tensors.layout import chunk_count, chunk_range
from tests.support.compute_thread import in_thread
from training.modules.gpt2_block import (
    GPT2Block,
)
from training.modules.llama_block import (
    LlamaBlock,
)
from worker.core import events as ev
from worker.device_thread import DeviceThread
from worker.file_exchange import ModelFiles
from worker.job_on_mesh import JobBuilder
from worker.weight_loader import WeightInbox

LIMIT_SECONDS = 30
TEXT = "".join(f"{number} times {number} is {number * number}.\n" for number in range(200))
SIZES: dict[str, Any] = {"num_heads": 6, "embedding_dim": 192, "num_blocks": 3, "max_sequence_length": 32}
GPT2 = GPT2Config(**SIZES, dropout_prob=0.1)
FSDP = DeviceConfig(mesh_shape=(2, 1), enable_fsdp=True)
BOTH = DeviceConfig(mesh_shape=(2, 2), enable_fsdp=True, enable_tp=True, axis_order=("tensor", "data"))
MODELS = {
    "gpt2": GPT2,
    "gpt2, tied, recomputed": GPT2.model_copy(
        update={"weight_tying": True, "runner_type": "memory_efficient"}
    ),
    "llama": LlamaConfig(**SIZES, num_groups=2, dropout_prob=0.0),
}


class WatchedWeightInbox(WeightInbox):
    """Inbox that records in `waits` each time the device thread begins to wait.

    Attributes:
        in_vain: number of waits to come that last no longer than asked for; others go on until they have an end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: queue.Queue[None] = queue.Queue()
        self.in_vain = 0

    def wait(self, ended: Callable[[], bool], seconds: float) -> bool:
        if not self._chunks and not ended():
            self.waits.put(None)
        if self.in_vain:
            self.in_vain -= 1
            return super().wait(ended, seconds)
        return super().wait(ended, threading.TIMEOUT_MAX)


class Device:
    """A device thread with a job on its mesh, and the inputs for the core that it returned."""

    def __init__(
        self, config: JobConfig, clock: Callable[[], float] = time.perf_counter, **settings: Any
    ) -> None:
        self.metrics = WorkerMetrics()
        self.inbox = WatchedWeightInbox()
        self.inputs: queue.Queue[ev.Input] = queue.Queue()
        builder = JobBuilder(in_thread(), clock=clock)
        self.sums = LeaseSums()
        self.thread = DeviceThread(
            self.inputs.put, self.metrics, builder, sums=self.sums, inbox=self.inbox, **settings
        )
        self.thread.build("a", config.to_json().encode())
        built = self.wait_for(ev.Built)
        self.elements = built.elements
        self.chunks = chunk_count(built.elements)
        self.thread.carry_out(ev.Perform(pb.Lease(job="a", lease=1, phase=pb.INITIALISE)), None)
        self.wait_for(ModelFiles)
        node_sum = self.sums.find(1)
        assert node_sum is not None
        self.initial = node_sum.values

    def wait_for(self, kind: Any) -> Any:
        """Wait for the next input of that kind for the core, and return it."""
        while True:
            event = self.inputs.get(timeout=LIMIT_SECONDS)
            assert not isinstance(event, ev.LeaseFailed | ev.BuildFailed), event
            if isinstance(event, kind):
                return event

    def load_weights(self, version: int, *chunks: int) -> None:
        """Load chunks of the weights of step `version`, as if they had arrived."""
        values = self.initial * np.float32(1 + version / 8)
        for index in chunks:
            start, stop = chunk_range(self.elements, index)
            header = ChunkHeader(
                job="a", generation=1, step=version, kind=WEIGHTS, index=index, offset=start, dtype=FLOAT32
            )
            chunk = pack_chunk(header, index, values[start:stop])
            self.thread.carry_out(ev.Load(chunk.header), chunk)

    def perform(self, lease: int, version: int) -> None:
        """Begin a lease of two micro-batches."""
        order = pb.Lease(job="a", generation=1, step=version, lease=lease, phase=pb.TRAIN, count=2)
        self.thread.carry_out(ev.Perform(order), None)

    def wait_until_idle(self) -> None:
        """Return when the device thread has nothing left to do but to wait for weights."""
        self.inbox.waits.get(timeout=LIMIT_SECONDS)

    def wait_for_sum(self, lease: int) -> bytes:
        """Wait until a lease is computed, and return the bytes of its sum."""
        assert self.wait_for(ev.LeaseComputed).lease == lease
        node_sum = self.sums.find(lease)
        assert node_sum is not None
        return node_sum.values.tobytes()


@pytest.fixture
def make_device(tmp_path: Path) -> Iterator[Callable[..., Device]]:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    data = DataConfig(files=(CorpusFile(path=str(path), sha256=hashlib.sha256(TEXT.encode()).hexdigest()),))
    devices = []

    def make(settings: dict[str, Any] | None = None, **changes: Any) -> Device:
        fields = {
            "seed": 7,
            "batch_size": 4,
            "validation_batch_size": 4,
            "data": data,
            "model": GPT2,
            **changes,
        }
        devices.append(Device(JobConfig(**fields), **(settings or {})))
        return devices[-1]

    yield make
    for device in devices:
        device.thread.close()


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the blocks of the model whose forward pass has ended, in order."""
    ended: list[str] = []
    for kind in (GPT2Block, LlamaBlock):
        call = kind.__call__

        def watched(self: Any, *arguments: Any, call: Any = call) -> Any:
            result = call(self, *arguments)
            ended.append(next(iter(self.parameters())).name.rsplit(".", 2)[0])
            return result

        monkeypatch.setattr(kind, "__call__", watched)
    return ended


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mesh", [DeviceConfig(), FSDP, BOTH], ids=["1 chip", "fsdp", "fsdp x tp"])
def test_a_pass_that_waits_for_every_chunk_gives_the_same_bits(
    make_device: Callable[..., Device], model: str, mesh: DeviceConfig
) -> None:
    device = make_device(model=MODELS[model], device=mesh)
    assert device.chunks > 2
    device.load_weights(0, *range(device.chunks))
    device.wait_for(ev.Loaded)
    device.load_weights(1, *range(device.chunks))
    device.wait_for(ev.Loaded)
    device.perform(2, 1)
    expected = device.wait_for_sum(2)
    device.load_weights(0, *range(device.chunks))  # other weights again
    device.wait_for(ev.Loaded)
    device.load_weights(1, 0)
    device.perform(3, 1)
    for chunk in range(1, device.chunks):
        device.wait_until_idle()
        device.load_weights(1, chunk)
    assert device.wait_for_sum(3) == expected


def test_the_forward_pass_runs_as_far_as_the_weights_that_have_arrived(
    make_device: Callable[..., Device], blocks: list[str]
) -> None:
    device = make_device()
    last = device.chunks - 1
    device.load_weights(0, *range(device.chunks))
    device.load_weights(1, *range(last))
    device.perform(2, 1)
    device.wait_until_idle()
    assert blocks == ["blocks.0", "blocks.1"], "as far as weights have arrived"
    inputs = [device.inputs.get(timeout=LIMIT_SECONDS)]
    assert inputs == [ev.Loaded("a", Version(1, 0))] and device.inputs.empty(), (
        "some of the new weights are missing"
    )
    device.load_weights(1, last)
    assert device.inputs.get(timeout=LIMIT_SECONDS) == ev.Loaded("a", Version(1, 1)), (
        "reported from within the pass"
    )
    device.wait_for(ev.LeaseComputed)
    assert blocks == ["blocks.0", "blocks.1", "blocks.2"] * 2, "two micro-batches"


def test_waiting_for_weights_does_not_count_as_computing(make_device: Callable[..., Device]) -> None:
    clock = [0.0]
    device = make_device({"clock": lambda: clock[0]})
    device.load_weights(0, *range(device.chunks))
    device.load_weights(1, 0)
    device.perform(2, 1)
    device.wait_until_idle()
    clock[0] += 1000.0  # time passes only while it waits
    device.load_weights(1, *range(1, device.chunks))
    assert device.wait_for(ev.LeaseComputed).seconds == 0.0

    def metric(name: str) -> float | None:
        return device.metrics.registry.get_sample_value(
            f"tiermesh_{name}_total", {"job": "a", "role": "worker"}
        )

    assert metric("waited_for_weights_seconds") == 1000.0
    assert metric("compute_seconds") == 0.0


def test_chunks_may_arrive_in_any_order(make_device: Callable[..., Device]) -> None:
    device = make_device()
    device.load_weights(1, *range(device.chunks))
    device.perform(2, 1)
    expected = device.wait_for_sum(2)
    device.load_weights(0, *range(device.chunks))
    device.load_weights(1, device.chunks - 1)
    device.perform(3, 1)
    for chunk in reversed(range(device.chunks - 1)):
        device.wait_until_idle()
        device.load_weights(1, chunk)
    assert device.wait_for_sum(3) == expected


def test_the_lease_after_one_that_was_dropped_while_it_waited_is_right(
    make_device: Callable[..., Device],
) -> None:
    device = make_device()
    device.load_weights(2, *range(device.chunks))
    device.perform(2, 2)
    expected = device.wait_for_sum(2)
    device.load_weights(0, *range(device.chunks))
    device.load_weights(1, 0, 1)
    device.perform(3, 1)
    device.wait_until_idle()
    device.thread.carry_out(ev.DropLease(3), None)
    device.load_weights(2, 0)  # a newer version than the one it waited for
    device.perform(4, 2)
    device.load_weights(2, *range(1, device.chunks))
    assert device.wait_for_sum(4) == expected
    assert device.sums.find(3) is None


def test_a_job_that_is_dropped_while_a_lease_waits(make_device: Callable[..., Device]) -> None:
    device = make_device()
    device.load_weights(0, *range(device.chunks))
    device.load_weights(1, 0, 1)
    device.perform(3, 1)
    device.wait_until_idle()
    next_job = JobConfig(seed=3, batch_size=8, validation_batch_size=8, model=LinearRegressionConfig())
    for effect in (ev.DropLease(3), ev.DropJob()):
        device.thread.carry_out(effect, None)
    device.thread.build("b", next_job.to_json().encode())
    assert device.wait_for(ev.Built).job == "b"


def test_a_worker_stops_while_a_lease_waits(make_device: Callable[..., Device]) -> None:
    device = make_device()
    device.load_weights(0, *range(device.chunks))
    device.load_weights(1, 0)
    device.perform(3, 1)
    device.wait_until_idle()
    device.thread.drop_leases()
    device.thread.carry_out(ev.Perform(pb.Lease(job="a", lease=4, phase=pb.INITIALISE)), None)
    assert device.wait_for(ModelFiles).lease == 4, "the thread is free, as it must be to close the mesh"


def test_a_captured_pass_waits_for_all_weights_first(
    make_device: Callable[..., Device], blocks: list[str]
) -> None:
    device = make_device(model=GPT2.model_copy(update={"dropout_prob": 0.0}), device=DeviceConfig(trace=True))
    device.load_weights(0, *range(device.chunks))
    device.load_weights(1, *range(device.chunks - 1))
    device.perform(2, 1)
    device.wait_until_idle()
    assert blocks == []
    device.load_weights(1, device.chunks - 1)
    device.wait_for(ev.LeaseComputed)


def test_a_long_wait_for_weights_is_logged_and_reported(
    make_device: Callable[..., Device], caplog: pytest.LogCaptureFixture
) -> None:
    device = make_device({"patience_seconds": 0.01})
    device.inbox.in_vain = 1
    device.load_weights(0, *range(device.chunks))
    device.load_weights(1, 0, 1)
    with caplog.at_level(logging.WARNING):
        device.perform(2, 1)
        device.wait_until_idle()
        device.wait_until_idle()
        report = device.thread.report()
        assert (report.task, report.waits_for) == (pb.COMPUTE_GRADIENTS, "chunk 2 of the weights")
        device.load_weights(1, *range(2, device.chunks))
        device.wait_for(ev.LeaseComputed)
    assert re.search("job a: lease 2 .*chunk 2", caplog.text)
