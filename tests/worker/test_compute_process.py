"""A compute process that dies, or says what can't be, costs the lease in progress and nothing else."""

from __future__ import annotations

import math
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from compute import server
from plane.lease_sums import LeaseSums
from protos import cluster_pb2 as pb
from protos import compute_pb2
from protos.checks_pb2 import MeshReport
from protos.tensors_pb2 import FLOAT32, ChunkHeader
from services.config.job import JobConfig
from services.config.models import LinearRegressionConfig
from services.runtime.child_output import TakeLines
from services.runtime.child_process import ChildProcess
from services.runtime.metrics import WorkerMetrics
from services.tensors.chunk_messages import pack_chunk
from tests.support.cluster.deadly_model import RAISED
from tests.support.compute_thread import in_thread
from tests.support.hanging_step import HANGS
from training.step import TrainingStep
from worker import device_thread
from worker.compute_process import TRAINING_STEP, Child, Spawn, Started, spawner
from worker.core import events as ev
from worker.device_thread import DeviceThread
from worker.job_on_mesh import JobBuilder

LIMIT_SECONDS = 60
JOB = JobConfig(seed=3, batch_size=8, validation_batch_size=8, model=LinearRegressionConfig()).to_json()


class Worker:
    """A device thread with a job, and what it has told the core.

    Args:
        spawn: starts its compute processes.
    """

    def __init__(self, spawn: Spawn) -> None:
        self.inputs: queue.Queue[Any] = queue.Queue()
        self.sums = LeaseSums()
        self.thread = DeviceThread(self.inputs.put, WorkerMetrics(), JobBuilder(spawn), sums=self.sums)
        self.thread.build("a", JOB)

    def wait_for(self, *kinds: type[Any]) -> Any:
        """Wait for the next input of some kinds."""
        while not isinstance(event := self.inputs.get(timeout=LIMIT_SECONDS), kinds):
            pass
        return event

    def load(self, elements: int, step: int = 0) -> None:
        """Give it the weights of a step."""
        values = np.linspace(-1, 1, elements, dtype=np.float32)
        chunk = pack_chunk(ChunkHeader(job="a", generation=1, step=step, dtype=FLOAT32), 0, values)
        self.thread.carry_out(ev.Load(chunk.header), chunk)

    def train(self, lease: int) -> ev.LeaseComputed | ev.LeaseFailed:
        """Compute a lease of two micro-batches, and return how it ended."""
        self.thread.carry_out(
            ev.Perform(pb.Lease(job="a", generation=1, lease=lease, phase=pb.TRAIN, count=2))
        )
        ended: ev.LeaseComputed | ev.LeaseFailed = self.wait_for(ev.LeaseComputed, ev.LeaseFailed)
        return ended

    def sum_of(self, lease: int) -> bytes:
        """Return the sum of a lease."""
        found = self.sums.find(lease)
        assert found is not None
        return found.values.tobytes()


@pytest.fixture
def make_worker() -> Iterator[Callable[[Spawn], Worker]]:
    made: list[Worker] = []

    def make(spawn: Spawn) -> Worker:
        made.append(Worker(spawn))
        return made[-1]

    yield make
    for each in made:
        each.thread.close()


class Lie:
    """A lie that a compute process tells once, after an honest lease.

    Args:
        kind: field of the message that it changes.
        change: changes it.
    """

    def __init__(self, kind: str, change: Callable[[Any], None]) -> None:
        self.kind = kind
        self.change = change
        self.is_due = False

    def __call__(self, message: compute_pb2.FromProcess) -> None:
        if self.is_due and message.WhichOneof("body") == self.kind:
            self.is_due = False
            self.change(message)


def _set(path: str, value: Any) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        *parents, name = path.split(".")
        for each in parents:
            message = getattr(message, each)
        setattr(message, name, value)

    return change


def _become(**body: Any) -> Callable[[Any], None]:
    return lambda message: message.CopyFrom(compute_pb2.FromProcess(call=message.call, **body))


LIES = {
    "an offset beyond the array": (
        "gradient_ready",
        _set("gradient_ready.offset", 1 << 40),
        "GradientReady from",
    ),
    "a loss of NaN": (
        "gradient_done",
        _set("gradient_done.loss", math.nan),
        "loss of NaN with a finite gradient",
    ),
    "a gradient that is not complete": (
        "gradient_ready",
        _become(gradient_done=compute_pb2.GradientDone(loss=1.0)),
        "elements missing",
    ),
    "a micro-batch out of order": ("begin_gradient", _set("begin_gradient.micro_batch", 1), "micro-batch 1"),
    "a range of others": ("begin_gradient", _set("begin_gradient.range", 3), "range 3"),
    "another request's number": ("gradient_ready", _set("call", 1), "of request 1, expected one of request"),
    "weights of no entry": (
        "pass_ended",
        _become(need_weights=compute_pb2.NeedWeights(entry=1000)),
        "NeedWeights of entry 1000",
    ),
    "an array that is too large": (
        "pass_ended",
        _become(send_array=compute_pb2.SendArray(shape=[1 << 30, 1 << 30])),
        "SendArray of",
    ),
    "an end without gradients": (
        "begin_gradient",
        _become(gradients_computed=compute_pb2.GradientsComputed()),
        "without all gradients",
    ),
    "a message that belongs elsewhere": (
        "begin_gradient",
        _become(done=compute_pb2.Done()),
        "done, expected one of",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_costs_the_lease_and_nothing_else(make_worker: Callable[[Spawn], Worker], name: str) -> None:
    kind, change, expected = LIES[name]
    lie = Lie(kind, change)
    worker = make_worker(in_thread(change=lie))
    worker.load(worker.wait_for(ev.Built).elements)
    assert isinstance(worker.train(1), ev.LeaseComputed)
    before = worker.sum_of(1)
    lie.is_due = True
    failed = worker.train(2)
    assert isinstance(failed, ev.LeaseFailed) and failed.died and expected in failed.reason, failed
    assert isinstance(worker.train(3), ev.LeaseComputed), "another process goes on, with the same weights"
    assert worker.sum_of(1) == before == worker.sum_of(3)


def test_another_version_is_refused_by_name(make_worker: Callable[[Spawn], Worker]) -> None:
    def change(message: compute_pb2.FromProcess) -> None:
        if message.HasField("hello"):
            message.hello.version = 99

    failed = make_worker(in_thread(change=change)).wait_for(ev.BuildFailed)
    assert "version 99 of the protocol" in failed.reason and "restart the worker" in failed.reason
    assert not failed.died, "the job is not at fault"


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [compute_pb2.Range(index=0, start=0, stop=1 << 40)],
        [compute_pb2.Range(index=7, start=0, stop=1)],
        [compute_pb2.Range(index=0, start=0, stop=1), compute_pb2.Range(index=0, start=1, stop=2)],
    ],
)
def test_ranges_that_cannot_be_are_refused(
    make_worker: Callable[[Spawn], Worker], ranges: list[compute_pb2.Range]
) -> None:
    def change(message: compute_pb2.FromProcess) -> None:
        if message.HasField("job_built"):
            del message.job_built.ranges[:]
            message.job_built.ranges.extend(ranges)

    assert "JobBuilt: " in make_worker(in_thread(change=change)).wait_for(ev.BuildFailed).reason


def test_a_process_that_ends_amid_a_lease_fails_it_with_the_reason(
    make_worker: Callable[[Spawn], Worker],
) -> None:
    leases: list[int] = []

    class DyingStep(TrainingStep):
        def micro_batches(self, *arguments: Any) -> list[float]:
            leases.append(1)
            if len(leases) == 2:
                raise server.Stopped
            return super().micro_batches(*arguments)

    worker = make_worker(in_thread(DyingStep))
    worker.load(worker.wait_for(ev.Built).elements)
    failed = worker.train(1)
    assert isinstance(failed, ev.LeaseFailed) and failed.died and "Stopped" in failed.reason
    assert isinstance(worker.train(2), ev.LeaseComputed)


@pytest.mark.parametrize("error", RAISED.values(), ids=RAISED)
def test_whatever_a_model_raises_fails_its_lease_alone(
    make_worker: Callable[[Spawn], Worker], error: BaseException
) -> None:
    leases: list[int] = []

    class RaisingStep(TrainingStep):
        def micro_batches(self, *arguments: Any) -> list[float]:
            leases.append(1)
            if len(leases) == 2:
                raise error
            return super().micro_batches(*arguments)

    worker = make_worker(in_thread(RaisingStep))
    worker.load(worker.wait_for(ev.Built).elements)
    failed = worker.train(1)
    assert isinstance(failed, ev.LeaseFailed) and not failed.died
    assert type(error).__name__ in failed.reason
    assert isinstance(worker.train(2), ev.LeaseComputed)


@pytest.mark.parametrize("ends_by", ["a limit", "a stop of its worker"])
def test_a_pass_that_hangs_is_ended(
    make_worker: Callable[[Spawn], Worker], ends_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_thread, "STOP_SECONDS", 1.0)
    spawned: list[Child] = []

    def spawn(take_lines: TakeLines) -> Started:
        step = "tests.support.hanging_step:HangingStep" if not spawned else TRAINING_STEP
        started = spawner("w", step)(take_lines)
        spawned.append(started.child)
        return started

    worker = make_worker(spawn)
    worker.load(worker.wait_for(ev.Built).elements)
    lease = pb.Lease(job="a", generation=1, lease=1, phase=pb.TRAIN, count=2)
    worker.thread.carry_out(ev.Perform(lease))
    while HANGS not in worker.wait_for(ev.Printed).lines:
        pass
    if ends_by == "a limit":
        worker.thread.end_hang(LIMIT_SECONDS)
        assert not spawned[0].wait(0)
        worker.thread.end_hang(0)
        failed = worker.wait_for(ev.LeaseFailed)
        assert failed.died and failed.reason.startswith("stopped: it had not got on for")
        assert isinstance(worker.train(2), ev.LeaseComputed)
    else:
        worker.thread.close()
        assert worker.wait_for(ev.LeaseFailed).reason == "stopped: the worker stops"
        assert len(spawned) == 1


def test_a_killed_process_is_replaced_and_its_death_has_a_reason(
    make_worker: Callable[[Spawn], Worker],
) -> None:
    spawned: list[Child] = []

    def spawn(take_lines: TakeLines) -> Started:
        started = spawner("w", TRAINING_STEP)(take_lines)
        spawned.append(started.child)
        return started

    worker = make_worker(spawn)
    worker.load(worker.wait_for(ev.Built).elements)
    assert isinstance(worker.train(1), ev.LeaseComputed)
    before = worker.sum_of(1)
    assert isinstance(spawned[0], ChildProcess)
    os.kill(spawned[0].pid, signal.SIGKILL)
    failed = worker.train(2)
    assert isinstance(failed, ev.LeaseFailed) and failed.died
    assert failed.reason.startswith("killed by SIGKILL")
    assert isinstance(worker.train(3), ev.LeaseComputed)
    assert worker.sum_of(1) == before == worker.sum_of(3)


def test_a_step_is_named_by_its_import_path(make_worker: Callable[[Spawn], Worker]) -> None:
    """What the process prints is told before its end."""
    worker = make_worker(spawner("w", "tests.no_module:Step"))
    refusal = "--step tests.no_module:Step: can't be imported"
    while not any(refusal in line for line in worker.wait_for(ev.Printed).lines):
        pass
    assert worker.wait_for(ev.BuildFailed) == ev.BuildFailed("a", "exit code 1", died=True)


def test_after_a_kill_the_mesh_must_sum_right_before_a_job_has_it(
    make_worker: Callable[[Spawn], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is unfit, and the job's next lease is another worker's."""
    checked: list[Any] = []

    def check(order: Any) -> MeshReport:
        checked.append(order)
        return MeshReport(problem="device 3 sums 7, expected 8" if len(checked) == 1 else "")

    class DyingStep(TrainingStep):
        def micro_batches(self, *arguments: Any) -> list[float]:
            raise server.Stopped

    monkeypatch.setattr(server, "check_mesh", check)
    worker = make_worker(in_thread(DyingStep))
    worker.load(worker.wait_for(ev.Built).elements)
    worker.train(1)
    failed = worker.wait_for(ev.LoadFailed)
    assert "device 3 sums 7" in failed.reason
    worker.thread.carry_out(ev.DropJob())
    worker.thread.build("a", JOB)
    worker.wait_for(ev.Built)
    assert [(each.rows, each.columns) for each in checked] == [(1, 1)] * 2


@pytest.mark.parametrize("is_loaded", [False, True], ids=["while it loads weights", "while it is idle"])
def test_a_death_without_a_lease_is_told_at_the_next_weights(
    make_worker: Callable[[Spawn], Worker], is_loaded: bool
) -> None:
    """Then the job is dropped, and built again when the aggregator says so."""
    spawned: list[Child] = []

    def spawn(take_lines: TakeLines) -> Started:
        started = spawner("w", TRAINING_STEP)(take_lines)
        spawned.append(started.child)
        return started

    worker = make_worker(spawn)
    elements = worker.wait_for(ev.Built).elements
    if is_loaded:
        worker.load(elements)
        worker.wait_for(ev.Loaded)
    assert isinstance(spawned[0], ChildProcess)
    os.kill(spawned[0].pid, signal.SIGSEGV)
    worker.load(elements, step=1)
    died = worker.wait_for(ev.Loaded, ev.LoadFailed)
    assert died == ev.LoadFailed("a", "killed by SIGSEGV", died=True)
    worker.thread.carry_out(ev.DropJob())
    worker.thread.build("a", JOB)
    worker.load(worker.wait_for(ev.Built).elements)
    assert isinstance(worker.train(1), ev.LeaseComputed)


def test_a_process_that_died_between_two_jobs_is_not_kept(make_worker: Callable[[Spawn], Worker]) -> None:
    spawned: list[Child] = []

    def spawn(take_lines: TakeLines) -> Started:
        started = in_thread()(take_lines)
        spawned.append(started.child)
        return started

    worker = make_worker(spawn)
    worker.wait_for(ev.Built)
    worker.thread.carry_out(ev.DropJob())
    worker.thread.build("b", JOB)
    worker.wait_for(ev.Built)
    assert len(spawned) == 1
    kept = threading.Event()
    worker.thread.carry_out(ev.DropJob())
    worker.thread._submit(kept.set)
    assert kept.wait(LIMIT_SECONDS)
    spawned[-1].stop(LIMIT_SECONDS)
    worker.thread.build("c", JOB)
    assert isinstance(worker.wait_for(ev.Built, ev.BuildFailed), ev.Built)
