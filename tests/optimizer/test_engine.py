"""An engine with real tensors and a real folder, whose disk hangs or is full."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from optimizer.checkpoint_store import CheckpointStore
from protos import cluster_pb2 as pb
from protos.files_pb2 import FileRef, ReadFileRequest
from protos.tensors_pb2 import GRADIENT
from services.checkpoints import (
    write as writing,
)
from services.checkpoints.read import (
    find_newest,
    list_checkpoints,
    read_checkpoint,
)
from services.config.load import load_job
from services.errors import Failed
from services.protocol.file_refs import MAX_PIECE_BYTES, make_ref
from tests.support.cluster.bits import sized_config, write_config
from tests.support.dialogues.engine import EngineDialogue
from tests.support.plane_threads import mark
from tests.support.small_disk import small_disk

LIMIT_SECONDS = 240  # a busy disk may take seconds for each fsync


def run(folder: Path, scenario: Callable[[EngineDialogue], Awaitable[None]], **training: Any) -> None:
    async def within() -> None:
        settings = {"max_steps": 6, "model_save_interval": 1, **training}
        config, _ = load_job(write_config(folder, sized_config(8, 4, **settings)), [])
        dialogue = EngineDialogue(folder, config)
        try:
            await scenario(dialogue)
        finally:
            dialogue.close()

    asyncio.run(asyncio.wait_for(within(), LIMIT_SECONDS))


class Disk:
    """Stand-in for the disk that can delay writes and make them fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.open.set()
        self.error: int | None = None
        self._write = writing.write_file
        monkeypatch.setattr(writing, "write_file", self._slow_write)

    def _slow_write(self, path: Path, data: Any) -> Any:
        assert self.open.wait(LIMIT_SECONDS)
        if self.error is not None and path.name == "optimizer.safetensors":
            path.write_bytes(b"torn")
            raise OSError(self.error, "the disk says no")
        return self._write(path, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_steps_go_on_while_a_write_hangs(tmp_path: Path, disk: Disk) -> None:
    async def scenario(dialogue: EngineDialogue) -> None:
        await dialogue.begin()
        disk.open.clear()
        try:
            for step in range(5):
                await dialogue.step(step)
            assert dialogue.steps() == [0], "no checkpoint is on disk yet"
        finally:
            disk.open.set()
        assert (await dialogue.next_message(pb.CheckpointWritten)).step == 1, (
            "the weights of the time of the request"
        )
        assert (await dialogue.next_message(pb.CheckpointWritten)).step == 5
        await dialogue.step(5)
        assert (await dialogue.next_message(pb.CheckpointWritten)).step == 6

    run(tmp_path, scenario)
    weights: list[NDArray[np.float32]] = []
    for _ in range(3):
        found, notices = find_newest(read_checkpoint, tmp_path / "checkpoints" / "j")
        assert found is not None and not notices
        weights.append(found.weights)
        for file in found.path.iterdir():
            file.unlink()
        found.path.rmdir()
    # SGD from weights of 1, with gradients 1, 2, ... over two micro-batches and lr 0.01.
    for values, sum_of_gradients in zip(weights, (21, 15, 1), strict=True):
        np.testing.assert_allclose(values, 1 - 0.01 * sum_of_gradients / 2, rtol=1e-5)


def test_a_callback_that_arrives_after_close_logs_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(dialogue: EngineDialogue) -> None:
        await dialogue.begin()
        dialogue.chunk(GRADIENT, 1, 0)
        await dialogue.next_message(pb.Commit)
        await asyncio.sleep(0)  # the plane takes the order
        # The update is done, but its callback has not run yet.
        assert dialogue.planes.local is not None
        mark(dialogue.planes.local._kernel).result(LIMIT_SECONDS)
        job = dialogue.engine.core.opened("j")
        assert job is not None and job.updated_chunks == 0
        dialogue.engine.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    run(tmp_path, scenario)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_job_cancelled_during_a_write_reports_the_checkpoint_that_was_written(
    tmp_path: Path, disk: Disk
) -> None:
    async def scenario(dialogue: EngineDialogue) -> None:
        await dialogue.begin()
        await dialogue.step(0)
        assert (await dialogue.next_message(pb.CheckpointWritten)).step == 1
        disk.open.clear()
        try:
            await dialogue.step(1)
            dialogue.order(pb.Close(job="j"))
            assert (await dialogue.next_message(pb.CheckpointWritten)).step == 1, "the newest on disk so far"
        finally:
            disk.open.set()
        written = await dialogue.next_message(pb.CheckpointWritten)
        assert Path(written.path).name == "step-00000002"

    run(tmp_path, scenario, checkpoint={"keep_last": 1})
    kept = [path.name for path in list_checkpoints(tmp_path / "checkpoints" / "j")]
    assert kept == ["step-00000000", "step-00000002"], "the older checkpoint is removed"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS])
def test_a_job_goes_on_without_a_checkpoint_and_keeps_the_last_good_one(
    tmp_path: Path, disk: Disk, error: int
) -> None:
    async def scenario(dialogue: EngineDialogue) -> None:
        await dialogue.begin()
        await dialogue.step(0)
        good = await dialogue.next_message(pb.CheckpointWritten)
        disk.error = error
        await dialogue.step(1)
        missed = await dialogue.next_message(pb.CheckpointMissed)
        assert missed.step == 2
        assert "step-00000002" in missed.reason
        assert f"the disk says no ({errno.errorcode[error]})" in missed.reason
        found, notices = find_newest(read_checkpoint, dialogue.root)
        assert (found is not None and found.step, notices) == (good.step, [])
        disk.error = None
        await dialogue.step(2)
        assert (await dialogue.next_message(pb.CheckpointWritten)).step == 3
        assert dialogue.failures == 1
        assert dialogue.steps() == [0, 1, 3]

    run(tmp_path, scenario)


def test_surplus_checkpoints_are_removed_but_not_while_they_are_read(tmp_path: Path) -> None:
    async def scenario(dialogue: EngineDialogue) -> None:
        await dialogue.begin()
        await dialogue.step(0)
        await dialogue.next_message(pb.CheckpointWritten)
        store = dialogue.engine.checkpoint_store
        found = store.list_files(pb.CheckpointRequest(job="j", newest=True))
        assert found.step == 1
        for step in range(1, 5):
            await dialogue.step(step)
            await dialogue.next_message(pb.CheckpointWritten)
        assert 1 in dialogue.steps()
        for ref in found.files.values():
            piece = store.read_piece(ReadFileRequest(job="j", step=1, sha256=ref.sha256))
            assert make_ref(piece.data) == ref
        await dialogue.step(5)
        await dialogue.next_message(pb.CheckpointWritten)

    run(tmp_path, scenario, checkpoint={"keep_last": 2, "keep_every": 3})
    left = sorted(path.name for path in (tmp_path / "checkpoints" / "j").iterdir())
    assert left == ["generation", "step-00000000", "step-00000003", "step-00000005", "step-00000006"]


def test_a_checkpoint_that_cannot_be_removed_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def rename(source: Any, target: Any) -> None:
        if str(target).endswith(".removed"):
            raise OSError(errno.EROFS, "Read-only file system")
        real_rename(source, target)

    real_rename = Path.rename
    monkeypatch.setattr(Path, "rename", rename)

    async def scenario(dialogue: EngineDialogue) -> None:
        await dialogue.begin()
        for step in range(3):
            await dialogue.step(step)
            await dialogue.next_message(pb.CheckpointWritten)

    run(tmp_path, scenario, checkpoint={"keep_last": 1})
    (line,) = {each.getMessage() for each in caplog.records if "step-00000001" in each.getMessage()}
    assert "Read-only file system" in line


@pytest.mark.parametrize(("minutes", "made"), [(1e-9, [0, 2, 3]), (60, [0])])
def test_checkpoints_by_time(tmp_path: Path, minutes: float, made: list[int]) -> None:
    async def scenario(dialogue: EngineDialogue) -> None:
        await dialogue.begin()
        for step in range(3):
            await dialogue.step(step)
            if step + 1 in made:
                await dialogue.next_message(pb.CheckpointWritten)

    run(tmp_path, scenario, model_save_interval=0, checkpoint={"every_minutes": minutes})
    assert [int(path.name[5:]) for path in list_checkpoints(tmp_path / "checkpoints" / "j")] == made


def test_with_on_error_stop_a_job_fails_without_a_checkpoint(tmp_path: Path, disk: Disk) -> None:
    async def scenario(dialogue: EngineDialogue) -> None:
        await dialogue.begin()
        disk.error = errno.ENOSPC
        await dialogue.step(0)
        failure = await dialogue.next_message(pb.Failure)
        assert all(
            fact in failure.reason for fact in ("step-00000001", "ENOSPC", "checkpoint.on_error: stop")
        )

    run(tmp_path, scenario, checkpoint={"on_error": "stop"})


def test_a_job_without_its_last_checkpoint_fails(tmp_path: Path, disk: Disk) -> None:
    async def scenario(dialogue: EngineDialogue) -> None:
        await dialogue.begin()
        for step in range(5):
            await dialogue.step(step)
            await dialogue.next_message(pb.CheckpointWritten)
        disk.error = errno.EROFS
        await dialogue.step(5)
        assert "EROFS) (tried twice" in (await dialogue.next_message(pb.Failure)).reason
        assert dialogue.failures == 2
        assert dialogue.steps() == [0, 1, 2, 3, 4, 5]

    run(tmp_path, scenario)


def test_without_memory_for_a_copy_the_checkpoint_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Large:
        def __array__(self, *_: object, **__: object) -> Any:
            raise MemoryError("no room")

    async def scenario(dialogue: EngineDialogue) -> None:
        await dialogue.begin()
        with monkeypatch.context() as patch:
            patch.setattr("plane.plane_tensors.PlaneTensors.arrays", lambda self: {"weights": Large()})
            await dialogue.step(0)
            assert "no room" in (await dialogue.next_message(pb.CheckpointMissed)).reason
        await dialogue.step(1)
        assert (await dialogue.next_message(pb.CheckpointWritten)).step == 2

    run(tmp_path, scenario)


def test_an_error_of_the_core_fails_the_job_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(self: Any, job: Any, norm: float) -> None:
        raise IndexError("list index out of range")

    async def scenario(dialogue: EngineDialogue) -> None:
        await dialogue.begin()
        with monkeypatch.context() as patch:
            patch.setattr("optimizer.core.job_core.JobCore._commit", commit)
            dialogue.chunk(GRADIENT, 1, 0)
            failure = await dialogue.next_message(pb.Failure)
        assert failure.job == "j" and not failure.lease
        assert failure.reason.startswith(
            "the optimizer failed while it ran this job: internal error, IndexError"
        )
        assert dialogue.engine.core.epoch == 1, "an older aggregator is still refused"
        dialogue.open()
        status = await dialogue.next_message(pb.OptimizerStatus)
        assert (status.state, status.generation, status.step) == (pb.OptimizerStatus.TRAINING, 2, 0)

    run(tmp_path, scenario)


def test_an_order_that_the_core_cannot_handle_fails_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(self: Any) -> None:
        raise KeyError(self.job)

    async def scenario(dialogue: EngineDialogue) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("optimizer.core.job_core.JobCore._load", load)
            dialogue.order(pb.Open(job="j"))
            assert "KeyError" in (await dialogue.next_message(pb.Failure)).reason
        await dialogue.begin()

    run(tmp_path, scenario)


def test_a_job_that_waits_for_disk_space_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = CheckpointStore.prepare

    def full(self: CheckpointStore, job: str) -> None:
        if job == "other":
            raise Failed("the disk is full") from OSError(errno.ENOSPC, "no space")
        prepare(self, job)

    monkeypatch.setattr(CheckpointStore, "prepare", full)

    async def scenario(dialogue: EngineDialogue) -> None:
        dialogue.open("other")
        missed = await dialogue.next_message(pb.CheckpointMissed)
        assert (missed.job, missed.generation) == ("other", 0)
        await dialogue.begin()
        await dialogue.step(0)
        assert dialogue.engine.core.is_loading("other")
        assert (await dialogue.remove("other")).kept == "the optimizer has the job open"
        dialogue.order(pb.Close(job="other"))
        assert not (await dialogue.remove("other")).kept

    run(tmp_path, scenario)


def test_an_effect_that_fails_fails_its_job_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = CheckpointStore.save_generation

    def fails(self: CheckpointStore, job: str, generation: int) -> None:
        if job == "other":
            raise Failed("the disk says no")
        save(self, job, generation)

    monkeypatch.setattr(CheckpointStore, "save_generation", fails)

    async def scenario(dialogue: EngineDialogue) -> None:
        await dialogue.begin()
        dialogue.open("other")
        failure = await dialogue.next_message(pb.Failure)
        assert (failure.job, failure.reason) == ("other", "the disk says no")
        await dialogue.step(0)
        assert (await dialogue.next_message(pb.CheckpointWritten)).step == 1

    run(tmp_path, scenario)


def test_a_snapshot_that_can_not_begin_is_a_missed_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise MemoryError("no room")

    async def scenario(dialogue: EngineDialogue) -> None:
        await dialogue.begin()
        with monkeypatch.context() as patch:
            patch.setattr("optimizer.job_tensors.JobTensors.snapshot", fails)
            await dialogue.step(0)
            assert "no room" in (await dialogue.next_message(pb.CheckpointMissed)).reason
        await dialogue.step(1)
        assert (await dialogue.next_message(pb.CheckpointWritten)).step == 2

    run(tmp_path, scenario)


def test_an_abandoned_upload_makes_room_for_a_checkpoint(tmp_path: Path) -> None:
    async def scenario(dialogue: EngineDialogue) -> None:
        await dialogue.begin()
        abandoned = dialogue.files.begin(FileRef(sha256="0" * 64, size=1 << 30), 0, "worker w")
        assert abandoned is not None
        with abandoned:
            abandoned.write(bytes(MAX_PIECE_BYTES))
        small.fill()
        await dialogue.step(0)
        assert (await dialogue.next_message(pb.CheckpointWritten)).step == 1
        assert dialogue.failures == 0

    with small_disk(tmp_path / "disk", "16m") as small:
        run(small.path, scenario)
