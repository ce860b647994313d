"""Whatever the device thread hangs in, its heartbeats say so: each task, with the time since it last got on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from compute import server
from mesh.device import Mesh, open_mesh
from plane.lease_sums import LeaseSums
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import FLOAT32, WEIGHTS, ChunkHeader
from services.config.job import JobConfig
from services.config.models import LinearRegressionConfig
from services.runtime.metrics import WorkerMetrics
from services.tensors.chunk_messages import pack_chunk
from tests.support.compute_thread import in_thread
from training.step import TrainingStep
from worker.core import events as ev
from worker.device_thread import DeviceThread
from worker.device_watch import DeviceWatch
from worker.job_on_mesh import JobBuilder

LIMIT_SECONDS = 30
JOB = JobConfig(seed=3, batch_size=8, validation_batch_size=8, model=LinearRegressionConfig()).to_json()

WORK: dict[pb.DeviceTask, str] = {
    pb.OPEN_MESH: "open_mesh",
    pb.BUILD_JOB: "__init__",
    pb.CLOSE_MESH: "close",
    pb.CHECK_THE_MESH: "check_mesh",
    pb.LOAD_WEIGHTS: "load",
    pb.MAKE_WEIGHTS: "initial_weights",
    pb.DESCRIBE_MODEL: "checkpoint_files",
    pb.COMPUTE_GRADIENTS: "micro_batches",
    pb.REPEAT_GRADIENTS: "micro_batches",
    pb.EVALUATE_BATCHES: "evaluate",
}
"""What hangs in each task: a method of the step or of the mesh."""
PHASES: dict[pb.DeviceTask, pb.Phase] = {
    pb.MAKE_WEIGHTS: pb.INITIALISE,
    pb.DESCRIBE_MODEL: pb.INITIALISE,
    pb.COMPUTE_GRADIENTS: pb.TRAIN,
    pb.REPEAT_GRADIENTS: pb.VERIFY,
    pb.EVALUATE_BATCHES: pb.EVALUATE,
}


class HangingDevice:
    """A device thread that hangs in one method.

    Args:
        hangs_in: the method.

    Attributes:
        now: the time.
        thread: the device thread.
        inputs: what it has told the core.
    """

    def __init__(self, hangs_in: str) -> None:
        self.now = 100.0
        self.inputs: queue.Queue[Any] = queue.Queue()
        self._hangs_in = hangs_in
        self._begun, self._ends = threading.Event(), threading.Event()
        self._knows_mesh = threading.Event()
        metrics = WorkerMetrics()
        vars(metrics)["set_mesh_fit"] = lambda fit: self._knows_mesh.set()
        builder = JobBuilder(in_thread(self._make_step, self._open_mesh), clock=lambda: self.now)
        self.thread = DeviceThread(self.inputs.put, metrics, builder, sums=LeaseSums())

    def hang(self, method: str) -> None:
        """Hang, if it is the method."""
        if method == self._hangs_in:
            self._begun.set()
            assert self._ends.wait(LIMIT_SECONDS)

    def wait_for_hang(self) -> None:
        """Return when the device thread hangs."""
        assert self._begun.wait(LIMIT_SECONDS)
        if self._hangs_in == "__init__":
            assert self._knows_mesh.wait(LIMIT_SECONDS)  # the process goes on building without it

    def close(self) -> None:
        """End the hang and the thread."""
        self._ends.set()
        if self._hangs_in in ("open_mesh", "__init__"):
            # `DeviceThread.close` would abandon the build, and its mesh.
            self.inputs.get(timeout=LIMIT_SECONDS)
        self.thread.close()

    def _open_mesh(self, *arguments: Any, **settings: Any) -> Mesh:
        self.hang("open_mesh")
        mesh = open_mesh(*arguments, **settings)
        self._wrap(mesh, "close")
        return mesh

    def _make_step(self, *arguments: Any, **settings: Any) -> TrainingStep:
        self.hang("__init__")
        step = TrainingStep(*arguments, **settings)
        for name in ("load", "initial_weights", "checkpoint_files", "micro_batches", "evaluate", "close"):
            self._wrap(step, name)
        return step

    def _wrap(self, of: Any, name: str) -> None:
        method = getattr(of, name)

        def hang_first(*arguments: Any, **settings: Any) -> Any:
            self.hang(name)
            return method(*arguments, **settings)

        vars(of)[name] = hang_first

    def load(self, elements: int) -> None:
        """Give it all weights of step 0."""
        header = ChunkHeader(job="a", epoch=1, generation=1, step=0, kind=WEIGHTS, dtype=FLOAT32)
        self.thread.carry_out(ev.Load(header), pack_chunk(header, 0, np.zeros(elements, np.float32)))


@pytest.fixture
def make_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], HangingDevice]]:
    """Make device threads that hang in one method until the test ends."""
    made: list[HangingDevice] = []

    def make(hangs_in: str) -> HangingDevice:
        device = HangingDevice(hangs_in)
        made.append(device)
        monkeypatch.setattr(server, "check_mesh", lambda *order: device.hang("check_mesh"))
        return device

    yield make
    for device in made:
        device.close()


def _begin(device: HangingDevice, task: pb.DeviceTask) -> None:
    """Have a device begin a task, with what must come before it."""
    if task == pb.CHECK_THE_MESH:
        device.thread.check_mesh(pb.CheckMesh(), lambda report: None)
        return
    device.thread.build("a", JOB.encode())
    if task in (pb.OPEN_MESH, pb.BUILD_JOB):
        return
    built = device.inputs.get(timeout=LIMIT_SECONDS)
    assert isinstance(built, ev.Built)
    if task == pb.CLOSE_MESH:
        device.thread.carry_out(ev.DropJob())
        return
    phase = PHASES.get(task)
    if phase != pb.INITIALISE:
        device.load(built.elements)
    if phase is not None:
        lease = pb.Lease(job="a", generation=1, lease=7, phase=phase, count=1, checksums=[0])
        device.thread.carry_out(ev.Perform(lease))


def test_each_task_is_in_the_table() -> None:
    assert {*WORK, pb.DEVICE_TASK_UNSPECIFIED} == set(pb.DeviceTask.values())


@pytest.mark.parametrize("task", WORK, ids=pb.DeviceTask.Name)
def test_a_hang_shows_in_the_report(make_device: Callable[[str], HangingDevice], task: pb.DeviceTask) -> None:
    device = make_device(WORK[task])
    _begin(device, task)
    device.wait_for_hang()
    device.now += 700
    assert device.thread.report() == pb.DeviceReport(task=task, seconds=700)


def test_a_task_inside_another_begins_and_ends_with_its_own_time() -> None:
    now = [0.0]
    watch = DeviceWatch(lambda: now[0])

    def found() -> tuple[int, float, str]:
        report = watch.report()
        return report.task, report.seconds, report.waits_for

    with watch.doing(pb.COMPUTE_GRADIENTS):
        now[0] = 5
        assert found() == (pb.COMPUTE_GRADIENTS, 5, "")
        with watch.waiting("chunk 3"):
            now[0] = 9
            assert found() == (pb.COMPUTE_GRADIENTS, 4, "chunk 3")
            with watch.doing(pb.LOAD_WEIGHTS):
                now[0] = 10
                assert found() == (pb.LOAD_WEIGHTS, 1, "")
        assert found() == (pb.COMPUTE_GRADIENTS, 0, ""), "it got on"
        now[0] = 11
        watch.advance()
        assert found() == (pb.COMPUTE_GRADIENTS, 0, "")
    assert found() == (pb.DEVICE_TASK_UNSPECIFIED, 0, "")
