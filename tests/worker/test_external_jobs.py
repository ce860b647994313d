"""A joined process on the device thread: it computes as any does, and what it does wrong costs itself alone."""

from __future__ import annotations

import asyncio
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plane.lease_sums import LeaseSums
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import FLOAT32, ChunkHeader
from services.config.job import JobConfig
from services.config.models import ExternalConfig
from services.runtime.compute_channel import ChannelEnded
from services.runtime.metrics import WorkerMetrics
from services.tensors.chunk_messages import pack_chunk
from services.tensors.layout import Layout
from tests.support.external_process import ExternalProcess, RefusedHere
from worker.core import events as ev
from worker.device_thread import DeviceThread
from worker.external_worker import ExternalJobs, describe_difference
from worker.file_exchange import ModelFiles
from worker.joining import AllowedUsers, JoinedProcess, JoinSocket

LIMIT_SECONDS = 60


class Joined:
    """A device thread that a process has joined, and what it has told the core.

    Args:
        path: path of the socket.
        exact: whether the job is exact.
        process: options of the process.
    """

    def __init__(self, path: Path, *, exact: bool, **process: Any) -> None:
        self.inputs: queue.Queue[Any] = queue.Queue()
        self.end: BaseException | None = None
        self.child, self.process = asyncio.run(self._join(path, process))
        self._serving = threading.Thread(target=self._serve, daemon=True)
        self._serving.start()
        self.layouts: list[Layout] = []
        jobs = ExternalJobs(self.child.spawn, built=self.layouts.append)
        self.sums = LeaseSums()
        self.thread = DeviceThread(self.inputs.put, WorkerMetrics(), jobs, sums=self.sums)
        config = JobConfig(
            seed=3,
            batch_size=8,
            validation_batches=2,
            exact=exact,
            model=ExternalConfig(max_sequence_length=5),
        )
        self.spec = config.to_json()
        self.thread.build("a", self.spec)

    async def _join(self, path: Path, process: dict[str, Any]) -> tuple[JoinedProcess, ExternalProcess]:
        joins = JoinSocket(path, AllowedUsers())
        joins.open()
        made = ExternalProcess(path, "a", **process)
        joined = await asyncio.wait_for(joins.accept(), LIMIT_SECONDS)
        joins.close()
        return joined, made

    def _serve(self) -> None:
        try:
            self.process.serve()
        except (RefusedHere, ChannelEnded, ValueError) as error:
            self.end = error

    def ended(self) -> BaseException | None:
        """Wait for the process's end, and return by what."""
        self._serving.join(LIMIT_SECONDS)
        assert not self._serving.is_alive()
        return self.end

    def wait_for(self, *kinds: type[Any]) -> Any:
        """Wait for the next input of some kinds."""
        while not isinstance(event := self.inputs.get(timeout=LIMIT_SECONDS), kinds):
            pass
        return event

    def load(self, step: int = 0) -> None:
        """Give it the weights of a step."""
        values = np.linspace(-1, 1, self.layouts[0].elements, dtype=np.float32)
        chunk = pack_chunk(ChunkHeader(job="a", generation=1, step=step, dtype=FLOAT32), 0, values)
        self.thread.carry_out(ev.Load(chunk.header), chunk)

    def lease(self, number: int, phase: Any = pb.TRAIN, **fields: Any) -> Any:
        """Compute a lease of two micro-batches, and return how it ended."""
        lease = pb.Lease(job="a", generation=1, lease=number, phase=phase, count=2, **fields)
        self.thread.carry_out(ev.Perform(lease))
        return self.wait_for(ev.LeaseComputed, ev.LeaseEvaluated, ev.LeaseFailed, ev.LoadFailed, ModelFiles)

    def begin(self) -> Any:
        """Have the job built and its weights loaded, and compute a first lease."""
        self.wait_for(ev.Built)
        self.load()
        return self.lease(1)


@pytest.fixture
def join() -> Iterator[Callable[..., Joined]]:
    made: list[Joined] = []
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:

        def make(*, exact: bool = True, **process: Any) -> Joined:
            made.append(Joined(Path(folder) / "s", exact=exact, **process))
            return made[-1]

        yield make
        for each in made:
            each.thread.close()
            each.child.stop(0, "the test is over")
            each.child.close()


def test_a_process_computes_leases_of_every_phase(join: Callable[..., Joined]) -> None:
    joined = join()
    built = joined.wait_for(ev.Built)
    assert built.tokens_per_micro_batch == 40 and built.evaluation_batches == 2
    assert built.layout_hash == joined.process.layout.hash
    files = joined.lease(9, pb.INITIALISE)
    assert files.layout.sha256 == joined.process.layout.hash and not files.files
    joined.load()
    computed = joined.lease(1)
    assert isinstance(computed, ev.LeaseComputed) and computed.tokens == 80
    assert joined.process.micro_batches == [(0, 0), (0, 1)] * 2, "the first lease is computed twice"
    first = joined.sums.find(1)
    assert first is not None and np.isfinite(first.values).all() and first.values.any()
    joined.lease(2)
    again = joined.sums.find(2)
    assert again is not None and again.values.tobytes() == first.values.tobytes()
    assert joined.process.micro_batches[4:] == [(0, 0), (0, 1)]
    (loss, _) = joined.lease(3, pb.EVALUATE).losses
    assert loss.tokens == 8 and joined.process.evaluated == [0, 1]
    verified = joined.lease(4, pb.VERIFY, checksums=[1])
    assert [each.micro_batch for each in verified.checksums] == [1]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("an offset beyond", "GradientReady from"),
        ("a gradient missing", "elements missing"),
        ("a loss of NaN", "a loss of NaN with a finite gradient"),
    ],
)
def test_what_cannot_be_ends_the_process_with_the_reason(
    join: Callable[..., Joined], fault: str, expected: str
) -> None:
    joined = join(fault=fault)
    assert isinstance(joined.begin(), ev.LeaseComputed)
    failed = joined.lease(2)
    assert isinstance(failed, ev.LeaseFailed) and failed.died and expected in failed.reason
    end = joined.ended()
    assert isinstance(end, RefusedHere) and expected in str(end)
    assert "join again" in joined.wait_for(ev.LoadFailed).reason, "no other process follows it"


def test_an_exception_fails_its_lease_with_its_text(join: Callable[..., Joined]) -> None:
    joined = join(fault="an exception")
    joined.begin()
    failed = joined.lease(2)
    assert isinstance(failed, ev.LeaseFailed) and not failed.died
    assert failed.reason == "ValueError: the user's loop failed"
    assert isinstance(joined.ended(), ValueError)
    assert joined.child.wait(LIMIT_SECONDS)


def test_an_exception_amid_the_first_lease_fails_it_alike(join: Callable[..., Joined]) -> None:
    joined = join(fault="an exception")
    joined.wait_for(ev.Built)
    joined.load()
    lease = pb.Lease(job="a", generation=1, lease=1, phase=pb.TRAIN, count=6)
    joined.thread.carry_out(ev.Perform(lease))
    failed = joined.wait_for(ev.NodeReady, ev.LeaseFailed)
    assert isinstance(failed, ev.LeaseFailed) and failed.reason == "ValueError: the user's loop failed"
    assert isinstance(joined.ended(), ValueError)


def test_a_dropped_first_lease_leaves_the_next_one_to_be_computed_twice(join: Callable[..., Joined]) -> None:
    joined = join()
    joined.wait_for(ev.Built)
    joined.thread.carry_out(ev.Perform(pb.Lease(job="a", generation=1, lease=1, phase=pb.TRAIN, count=2)))
    joined.thread.carry_out(ev.DropLease(1))  # it waits for weights, or has not begun
    joined.load()
    assert isinstance(joined.lease(2), ev.LeaseComputed)
    assert joined.process.micro_batches[-4:] == [(0, 0), (0, 1)] * 2


@pytest.mark.parametrize(
    ("fault", "difference"),
    [
        ("other bits", "gradient of micro-batches 0 to 1 of step 0: CRC-32C"),
        ("other bits later", "gradient of micro-batches 0 to 1 of step 0: CRC-32C"),
        ("another loss later", "loss of micro-batch 1 of step 0: "),
    ],
)
def test_other_bits_in_any_part_of_the_first_lease_are_refused(
    join: Callable[..., Joined], fault: str, difference: str
) -> None:
    """Nothing of the lease is told before."""
    joined = join(fault=fault)
    joined.wait_for(ev.Built)
    joined.load()
    joined.thread.carry_out(ev.Perform(pb.Lease(job="a", generation=1, lease=1, phase=pb.TRAIN, count=2)))
    told = joined.wait_for(ev.NodeReady, ev.LoadFailed)
    assert isinstance(told, ev.LoadFailed) and not told.died
    assert f"other bits when it computes a lease again: {difference}" in told.reason
    assert "exact: false" in told.reason


def test_other_bits_are_told_where_the_job_accepts_them(join: Callable[..., Joined]) -> None:
    inexact = join(exact=False, fault="other bits", fingerprint="")
    inexact.wait_for(ev.Built)
    inexact.load()
    inexact.thread.carry_out(ev.Perform(pb.Lease(job="a", generation=1, lease=1, phase=pb.TRAIN, count=2)))
    (line,) = inexact.wait_for(ev.Printed).lines
    assert "other bits" in line and "the job accepts it" in line
    assert isinstance(inexact.wait_for(ev.LeaseComputed, ev.LeaseFailed), ev.LeaseComputed)
    assert isinstance(inexact.lease(2), ev.LeaseComputed), "it is told once"


def test_an_exact_job_needs_a_fingerprint(join: Callable[..., Joined]) -> None:
    failed = join(fingerprint="").wait_for(ev.BuildFailed)
    assert failed.reason.startswith("fingerprint: none given") and not failed.unfit and not failed.died


def test_a_gradient_that_is_not_finite_is_told_with_its_parameter(join: Callable[..., Joined]) -> None:
    joined = join(fault="not finite")
    joined.begin()
    joined.load(step=1)
    lease = pb.Lease(job="a", generation=1, lease=2, phase=pb.TRAIN, step=1, count=2)
    joined.thread.carry_out(ev.Perform(lease))
    ready = joined.wait_for(ev.NodeReady)
    assert [(each.micro_batch, each.parameter) for each in ready.non_finite] == [
        (0, "first.bias"),
        (1, "first.bias"),
    ]


def test_a_process_serves_the_job_again_after_a_pause(join: Callable[..., Joined]) -> None:
    joined = join()
    joined.begin()
    joined.thread.carry_out(ev.DropJob())
    joined.thread.build("a", joined.spec)
    assert isinstance(joined.begin(), ev.LeaseComputed)
    assert joined.process.opened == 2


def test_the_first_difference_of_two_layouts_is_named_with_both_shapes() -> None:
    def layout(**shapes: tuple[int, ...]) -> Layout:
        return Layout.build((name, shape, True, name, False) for name, shape in shapes.items())

    job = layout(a=(2, 3), b=(4,))
    other = describe_difference(layout(a=(2, 3), b=(5,)), job)
    assert (other.field, other.value, other.expected) == ("b", "[5]", "[4]")
    assert "b: [5] in this process, the job's is [4]" in other.reason and other.fix in other.reason
    assert describe_difference(layout(a=(2, 3)), job).value == "absent"
    extra = describe_difference(layout(a=(2, 3), b=(4,), c=(1,)), job)
    assert (extra.field, extra.value, extra.expected) == ("c", "[1]", "absent")
    assert describe_difference(layout(b=(4,), a=(2, 3)), job).field == "parameters"
