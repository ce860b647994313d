"""The device thread closes the mesh when a job ends, when it is stopped in a step, and when something fails."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compute.chip_memory import ChipMemoryShort
from compute.memory_phases import TRACK_MEMORY
from compute.step_interface import StepFactory
from mesh.device import Mesh, open_mesh
from plane.lease_sums import LeaseSums
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import FLOAT32, WEIGHTS, ChunkHeader
from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig
from services.config.models import GPT2Config, LinearRegressionConfig
from services.config.pipeline import PipelineConfig
from services.corpora.reading_progress import report_reading
from services.corpora.token_file import TokenFileDamaged
from services.errors import Failed
from services.pipeline.split import StageRun
from services.runtime.metrics import WorkerMetrics
from services.tensors.chunk_messages import TensorChunk, pack_chunk
from services.tensors.kernels.arithmetic import Float32Array
from tests.support.compute_thread import in_thread
from tests.support.facts import has_facts
from training.range_step import RangeStep
from training.step import TrainingStep
from worker import device_thread
from worker.core import events as ev
from worker.device_thread import ABANDON_SECONDS, DeviceThread
from worker.file_exchange import ModelFiles
from worker.job_on_mesh import JobBuilder

LIMIT_SECONDS = 30
LINEAR = JobConfig(seed=3, batch_size=8, validation_batch_size=8, model=LinearRegressionConfig())
JOB = LINEAR.to_json()
OTHER_MESH = LINEAR.model_copy(update={"device": DeviceConfig(dtype="bfloat16")}).to_json()


class Device:
    """A device thread, and the inputs for the core that it returned."""

    def __init__(self, make_step: StepFactory = TrainingStep) -> None:
        self.metrics = WorkerMetrics()
        self.inputs: queue.Queue[ev.Input] = queue.Queue()
        self.meshes: list[Mesh] = []
        self.refusal: Failed | None = None
        builder = JobBuilder(in_thread(make_step, self._open_mesh))
        self.sums = LeaseSums()
        self.thread = DeviceThread(self.inputs.put, self.metrics, builder, sums=self.sums)

    def carry_out(self, effect: ev.Effect) -> None:
        """Carry out an effect of the core."""
        self.thread.carry_out(effect, None)

    def next_input(self) -> ev.Input:
        """Wait for the thread's next input for the core, and return it."""
        return self.inputs.get(timeout=LIMIT_SECONDS)

    def _open_mesh(self, *arguments: Any, **settings: Any) -> Mesh:
        if self.refusal is not None:
            raise self.refusal
        self.meshes.append(open_mesh(*arguments, **settings))
        return self.meshes[-1]

    @property
    def mesh_fit(self) -> float | None:
        """Value of the metric `tiermesh_mesh_fit`."""
        return self.metrics.registry.get_sample_value("tiermesh_mesh_fit", {"role": "worker"})


@pytest.fixture
def make_device() -> Iterator[Callable[..., Device]]:
    """Make device threads that are closed after the test."""
    made: list[Device] = []

    def make(make_step: StepFactory = TrainingStep) -> Device:
        made.append(Device(make_step))
        return made[-1]

    yield make
    for device in made:
        device.thread.close()


@pytest.fixture
def device(make_device: Callable[..., Device]) -> Device:
    return make_device()


def _is_closed(mesh: Mesh) -> bool:
    try:
        _ = mesh.handle
    except Failed:
        return True
    return False


def _make_lease(count: int) -> ev.Perform:
    return ev.Perform(pb.Lease(job="a", generation=1, lease=7, phase=pb.TRAIN, count=count))


def test_the_mesh_stays_open_for_the_next_job_that_it_suits(device: Device) -> None:
    for job, config in (("a", JOB), ("b", JOB), ("c", OTHER_MESH)):
        device.thread.build(job, config.encode())
        assert isinstance(device.next_input(), ev.Built)
        device.carry_out(ev.DropJob())
    assert len(device.meshes) == 2 and _is_closed(device.meshes[0])
    device.thread.close()
    assert _is_closed(device.meshes[1])


def test_a_worker_without_a_job_closes_its_mesh_after_a_time(
    make_device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_thread, "KEEP_SECONDS", 0.01)
    closed = threading.Event()
    close = Mesh.close

    def note(mesh: Mesh) -> None:
        close(mesh)
        closed.set()

    monkeypatch.setattr(Mesh, "close", note)
    device = make_device()
    device.thread.build("a", JOB.encode())
    assert isinstance(device.next_input(), ev.Built)
    assert not closed.is_set()
    device.carry_out(ev.DropJob())
    assert closed.wait(LIMIT_SECONDS)


class DamagedCorpus(TrainingStep):
    """A training step whose corpus is damaged."""

    def micro_batches(self, *arguments: Any) -> list[float]:
        raise TokenFileDamaged("ids.bin: differs", Path("ids.bin"), 7)


@pytest.mark.parametrize("is_copy", [True, False])
def test_a_damaged_file_is_no_failed_lease(make_device: Callable[..., Device], is_copy: bool) -> None:
    places = {"/elsewhere/ids.bin": Path("ids.bin")} if is_copy else {}
    damaged = ev.DamagedInput("ids.bin", 7) if is_copy else None
    expected = ev.InputDamaged("a", damaged, "ids.bin: differs")

    def refuse(*arguments: Any, **settings: Any) -> TrainingStep:
        raise TokenFileDamaged("ids.bin: differs", Path("ids.bin"), 7)

    device = make_device(refuse)
    device.thread.build("a", JOB.encode(), places)
    assert device.next_input() == expected
    device = make_device(DamagedCorpus)
    device.thread.build("a", JOB.encode(), places)
    device.next_input()
    device.carry_out(_make_lease(1))
    assert device.next_input() == expected


@pytest.mark.parametrize("ends_by", ["another job", "a dropped job", "a stop"])
def test_a_build_that_reads_files_ends_when_it_is_not_wanted(
    make_device: Callable[..., Device], ends_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_thread, "ABANDON_SECONDS", LIMIT_SECONDS)
    reads, wanted = threading.Event(), threading.Event()

    def read_or_make(*arguments: Any, **settings: Any) -> TrainingStep:
        if wanted.is_set():
            return TrainingStep(*arguments, **settings)
        while True:
            report_reading(Path("ids.bin"), 1, 2)
            reads.set()

    device = make_device(read_or_make)
    device.thread.build("a", JOB.encode())
    assert reads.wait(LIMIT_SECONDS)
    wanted.set()
    if ends_by == "a stop":
        device.thread.close()
    else:
        if ends_by == "a dropped job":
            device.carry_out(ev.DropJob())
        device.thread.build("b", JOB.encode())
        while isinstance(found := device.next_input(), ev.Fetching):
            continue
        assert isinstance(found, ev.Built) and found.job == "b", "the first build's end is not told"
    assert _is_closed(device.meshes[0])


def test_stages_that_do_not_fit_are_told_apart_from_a_job_that_does_not(
    make_device: Callable[..., Device],
) -> None:
    def refuse(*arguments: Any, **settings: Any) -> TrainingStep:
        raise ChipMemoryShort("20 GB needed")

    device = make_device(refuse)
    for stages in (None, StageRun(0, 1)):
        device.thread.build("a", JOB.encode(), {}, stages)
        failed = ev.BuildFailed("a", "20 GB needed", too_large=stages is not None)
        assert device.next_input() == failed


class FullMesh(TrainingStep):
    """A training step on a mesh without memory for the weights."""

    def load(self, entry_index: int, values: Float32Array) -> None:
        raise RuntimeError("Out of Memory: Not enough space to allocate 64 B DRAM buffer across 12 banks")


def test_weights_that_do_not_fit_on_the_mesh_are_reported_once(make_device: Callable[..., Device]) -> None:
    """Also to a lease that waits for them: the core drops it."""
    device = make_device(FullMesh)
    device.thread.build("a", JOB.encode())
    built = device.next_input()
    assert isinstance(built, ev.Built)
    for step in (4, 5):
        values = np.zeros(built.elements, np.float32)
        chunk = pack_chunk(ChunkHeader(job="a", generation=1, step=step, dtype=FLOAT32), 0, values)
        device.thread.carry_out(ev.Load(chunk.header), chunk)
        device.carry_out(_make_lease(1))
    failed = device.next_input()
    assert isinstance(failed, ev.LoadFailed) and failed.job == "a"
    assert has_facts(
        failed.reason, "step 4 can't be put on the mesh ... memory is full ... smaller batch_size"
    )
    device.carry_out(ev.DropLease(7))
    device.carry_out(ev.DropJob())
    device.thread.build("b", JOB.encode())
    assert isinstance(device.next_input(), ev.Built), "nothing was reported between, and the mesh was freed"


def test_rates_and_memory_of_a_job_are_measured(
    device: Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRACK_MEMORY, "1")
    device.thread.build("a", JOB.encode())
    built = device.next_input()
    assert isinstance(built, ev.Built)
    values = np.zeros(built.elements, np.float32)
    chunk = pack_chunk(ChunkHeader(job="a", generation=1, dtype=FLOAT32), 0, values)
    device.thread.carry_out(ev.Load(chunk.header), chunk)
    device.carry_out(_make_lease(2))
    while not isinstance(device.next_input(), ev.LeaseComputed):
        pass
    device.carry_out(ev.Perform(pb.Lease(job="a", generation=1, lease=8, phase=pb.TRAIN, first=2, count=2)))
    while not isinstance(device.next_input(), ev.LeaseComputed):
        pass
    phases = ["MODEL_CREATION", "WEIGHTS_LOADED", "FORWARD_PASS", "BACKWARD_PASS", "FIRST_ITERATION_COMPLETE"]
    printed = capsys.readouterr().out.splitlines()
    as_in_ttml = [each.replace("WEIGHTS_LOADED", "OPTIMIZER_CREATION") for each in phases]
    assert [line.strip("- ") for line in printed if line.startswith("---")] == as_in_ttml, "once"
    assert f"Total parameters: {built.elements:,}" in printed
    samples = {
        name: device.metrics.registry.get_sample_value(
            f"tiermesh_{name}", {"job": "a", "role": "worker", **labels}
        )
        for name, labels in (
            ("samples_per_second", {}),
            ("tokens_per_second", {}),
            ("device_memory_bytes", {"phase": "FORWARD_PASS"}),
            ("device_memory_peak_bytes", {"phase": "BACKWARD_PASS"}),
            ("host_memory_bytes", {"phase": "FIRST_ITERATION_COMPLETE"}),
        )
    }
    assert all(value is not None and value > 0 for value in samples.values()), samples


def test_a_stop_mid_step_ends_the_step_and_closes_the_mesh() -> None:
    begun, go_on = threading.Event(), threading.Event()
    computed = []

    class BlockedStep(TrainingStep):
        def micro_batches(self, step: int, first: int, *lease: Any) -> list[float]:
            computed.append(first)
            begun.set()
            assert go_on.wait(LIMIT_SECONDS)
            return [0.0]

    device = Device(BlockedStep)
    device.thread.build("a", JOB.encode())
    assert isinstance(device.next_input(), ev.Built)
    device.carry_out(_make_lease(100))
    assert begun.wait(LIMIT_SECONDS)
    device.thread.drop_leases()
    assert not _is_closed(device.meshes[0]), "not under the running micro-batch"
    go_on.set()
    device.thread.close()
    assert computed == [0], "the remaining micro-batches are given up"
    assert _is_closed(device.meshes[0])


def test_a_dropped_lease_ends_before_its_backward_pass(
    monkeypatch: pytest.MonkeyPatch, device: Device
) -> None:
    run_forward, begun, go_on = RangeStep.forward, threading.Event(), threading.Event()

    def forward(*arguments: Any) -> Any:
        begun.set()
        assert go_on.wait(LIMIT_SECONDS)
        return run_forward(*arguments)

    monkeypatch.setattr(RangeStep, "forward", forward)
    monkeypatch.setattr(RangeStep, "backward", lambda *arguments: pytest.fail("the backward pass has begun"))
    device.thread.build("a", JOB.encode())
    built = device.next_input()
    assert isinstance(built, ev.Built)
    chunk = pack_chunk(
        ChunkHeader(job="a", generation=1, dtype=FLOAT32), 0, np.zeros(built.elements, np.float32)
    )
    device.thread.carry_out(ev.Load(chunk.header), chunk)
    device.carry_out(_make_lease(2))
    assert begun.wait(LIMIT_SECONDS)
    device.carry_out(ev.DropLease(7))
    go_on.set()
    device.thread.build("b", JOB.encode())
    reported = [device.next_input() for _ in range(2)]
    assert [type(each) for each in reported] == [ev.Loaded, ev.Built], "the lease ended without a report"


def test_a_step_that_fails_is_reported_and_the_mesh_can_still_be_closed(
    make_device: Callable[..., Device],
) -> None:
    class FailingStep(TrainingStep):
        def micro_batches(self, *lease: Any) -> list[float]:
            raise RuntimeError(
                "TT_FATAL @ x.cpp:1: a\ninfo:\nTrying to get un-initialized fabric context\nbacktrace:\n x"
            )

    device = make_device(FailingStep)
    device.thread.build("a", JOB.encode())
    assert isinstance(device.next_input(), ev.Built)
    device.carry_out(_make_lease(2))
    failed = device.next_input()
    assert isinstance(failed, ev.LeaseFailed)
    assert "links between devices" in failed.reason and "\n" not in failed.reason
    device.carry_out(ev.DropJob())
    device.thread.build("b", JOB.encode())
    assert isinstance(device.next_input(), ev.Built)
    assert _is_closed(device.meshes[0])


def test_a_mesh_that_cannot_be_opened_makes_the_worker_unfit_until_it_can(device: Device) -> None:
    device.refusal = Failed("device_config.mesh_shape: [1, 8] can't be opened: chips busy")
    device.thread.build("a", JOB.encode())
    assert device.next_input() == ev.BuildFailed("a", str(device.refusal), unfit=True)
    assert device.mesh_fit == 0
    device.refusal = None
    device.thread.build("a", JOB.encode())
    assert isinstance(device.next_input(), ev.Built)
    assert device.mesh_fit == 1


def test_a_job_that_cannot_be_built_leaves_no_mesh_open(make_device: Callable[..., Device]) -> None:
    def refuse(*arguments: object, **callbacks: object) -> TrainingStep:
        raise Failed("no such corpus")

    device = make_device(refuse)
    device.thread.build("a", JOB.encode())
    assert device.next_input() == ev.BuildFailed("a", "no such corpus"), "not unfit: the mesh could be opened"
    assert _is_closed(device.meshes[0])


def test_a_mesh_that_does_not_close_does_not_stop_the_next_job(
    device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device.thread.build("a", JOB.encode())
    assert isinstance(device.next_input(), ev.Built)
    close = Mesh.close

    def fail(mesh: Mesh) -> None:
        close(mesh)
        raise RuntimeError("a chip hangs")

    with monkeypatch.context() as patched:
        patched.setattr(Mesh, "close", fail)
        device.thread.build("b", OTHER_MESH.encode())
        assert isinstance(device.next_input(), ev.Built)
    assert "the mesh did not close: internal error, RuntimeError" in caplog.text


def test_a_verification_gives_the_lease_s_checksum_and_no_sum(device: Device) -> None:
    device.thread.build("a", JOB.encode())
    built = device.next_input()
    assert isinstance(built, ev.Built)
    values = np.linspace(-1, 1, built.elements, dtype=np.float32)
    chunk = pack_chunk(ChunkHeader(job="a", generation=1, dtype=FLOAT32), 0, values)
    device.thread.carry_out(ev.Load(chunk.header), chunk)
    lease = pb.Lease(job="a", generation=1, lease=7, phase=pb.TRAIN, count=4, checksums=[1, 3])
    device.carry_out(ev.Perform(lease))
    inputs: list[ev.Input] = []
    while not (inputs and isinstance(inputs[-1], ev.LeaseComputed)):
        inputs.append(device.next_input())
    computed = inputs[-1]
    assert isinstance(computed, ev.LeaseComputed)
    assert [each.micro_batch for each in computed.checksums] == [1, 3]
    for number, checksum in enumerate(computed.checksums, 8):
        index = checksum.micro_batch
        check = pb.Lease(job="a", generation=1, lease=number, phase=pb.VERIFY, first=index, count=1)
        check.checksums.append(index)
        device.carry_out(ev.Perform(check))
        assert device.next_input() == ev.LeaseComputed(number, 0.0, 0, (checksum,)), "the micro-batch alone"
        assert device.sums.find(number) is None
    micro_batches = device.metrics.registry.get_sample_value(
        "tiermesh_micro_batches_total", {"job": "a", "role": "worker"}
    )
    assert micro_batches == 4, "a verification is no training"


def test_a_build_that_hangs_does_not_keep_a_worker_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_thread, "STOP_SECONDS", 0.2)
    begun, never = threading.Event(), threading.Event()

    def hang(*_: Any, **__: Any) -> Any:
        begun.set()
        never.wait()

    inputs: queue.Queue[ev.Input] = queue.Queue()
    thread = DeviceThread(
        inputs.put, WorkerMetrics(), JobBuilder(in_thread(open_mesh=hang)), sums=LeaseSums()
    )
    try:
        thread.build("job", JOB.encode())
        assert begun.wait(10)
        thread.close()  # returns although the build hangs
    finally:
        never.set()


def test_a_lease_under_way_is_waited_for() -> None:
    """Only builds are abandoned: a mesh is never freed under a pass that uses it."""
    inputs: queue.Queue[ev.Input] = queue.Queue()
    thread = DeviceThread(inputs.put, WorkerMetrics(), JobBuilder(in_thread()), sums=LeaseSums())
    done = threading.Event()

    def work() -> None:
        time.sleep(ABANDON_SECONDS + 0.5)
        done.set()

    thread._submit(work)
    thread.close()
    assert done.is_set()


def test_a_lease_of_a_pipeline_on_submeshes_has_the_bits_of_the_whole_model(
    make_device: Callable[..., Device], tmp_path: Path
) -> None:
    text = "".join(f"{number} squared is {number * number}.\n" for number in range(100))
    (tmp_path / "text.txt").write_text(text)
    file = CorpusFile(path=str(tmp_path / "text.txt"), sha256=hashlib.sha256(text.encode()).hexdigest())
    whole = JobConfig(
        model=GPT2Config(
            num_heads=2, embedding_dim=64, num_blocks=4, max_sequence_length=32, dropout_prob=0.1
        ),
        data=DataConfig(files=(file,)),
    )
    stages = PipelineConfig(blocks_per_stage=(2, 2), ranges_per_stage=2, schedule="interleaved_1f1b")
    split = whole.model_copy(update={"pipeline": stages, "num_workers": 2, "gradient_accumulation_steps": 6})
    results, places = [], {}
    for job, shape in ((whole, (1, 1)), (split, (2, 1))):
        device = make_device()
        device.thread.build("a", job.to_json().encode())
        built = device.next_input()
        assert isinstance(built, ev.Built)
        assert device.meshes[0].shape == shape
        initial = pb.Lease(job="a", generation=1, lease=1, phase=pb.INITIALISE)
        device.carry_out(ev.Perform(initial))
        assert isinstance(device.next_input(), ModelFiles)
        weights = device.sums.find(1)
        assert weights is not None
        header = ChunkHeader(job="a", generation=1, kind=WEIGHTS, elements=weights.values.size, dtype=FLOAT32)
        device.thread.carry_out(ev.Load(header), TensorChunk(header, weights.values.tobytes()))
        lease = pb.Lease(job="a", generation=1, lease=2, phase=pb.TRAIN, first=1, count=3, checksums=[1, 3])
        device.carry_out(ev.Perform(lease))
        inputs = []
        while not inputs or not isinstance(inputs[-1], ev.LeaseComputed):
            inputs.append(device.next_input())
        (ended,) = [each for each in inputs if isinstance(each, ev.NodeReady) and not each.first_element]
        assert len(ended.losses) == 3
        places[shape] = [(each.micro_batch, each.place) for each in inputs[-1].checksums]
        lease_sum = device.sums.find(2)
        assert lease_sum is not None
        results.append((ended.losses, lease_sum.values.tobytes(), weights.values.tobytes()))
        device.thread.close()
    assert results[0] == results[1]
    passes = range(7)  # the last forward pass puts out nothing
    assert places[2, 1] == [(micro_batch, place) for micro_batch in (1, 3) for place in passes]
    assert places[1, 1] == [(1, 0), (3, 0)]
