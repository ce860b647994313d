"""Removal of checkpoints: what is in use stays, links are not followed, a crash leaves nothing half removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from optimizer.checkpoint_store import CheckpointStore
from optimizer.checkpoint_use import READ_SECONDS, CheckpointUse
from protos import cluster_pb2 as pb
from protos.files_pb2 import FileRef, ReadFileRequest
from services.config.job import JobConfig
from services.config.models import LinearRegressionConfig
from services.errors import Failed, Refused
from services.files.errors import FileMissing
from services.tensors.layout import Layout


def write(store: CheckpointStore, job: str, *steps: int) -> None:
    layout = Layout.build([("weight", (3,), True, "weight", False)])
    config = JobConfig(model=LinearRegressionConfig())
    for step in steps:
        weights = np.full(3, step, np.float32)
        store.write(job, 1, step, config, layout, weights, {}, {"config.json": b"{}"})


def found(store: CheckpointStore, *jobs: str, hashes: bool = False) -> list[pb.StoredCheckpoint]:
    return list(store.removal.find(pb.ListCheckpointsRequest(jobs=jobs, hashes=hashes)))


def remove(store: CheckpointStore, job: str, *steps: int) -> pb.RemoveCheckpointsReply:
    return store.removal.remove(pb.RemoveCheckpointsRequest(job=job, steps=steps, all=not steps))


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "checkpoints")
    write(store, "a", 0, 4, 8)
    write(store, "b", 0)
    return store


def test_checkpoints_are_listed_with_size_and_hash(tmp_path: Path, store: CheckpointStore) -> None:
    listed = found(store, "a", "missing", "b", hashes=True)
    assert [(each.job, each.step) for each in listed] == [("a", 0), ("a", 4), ("a", 8), ("b", 0)]
    for each in listed:
        folder = tmp_path / "checkpoints" / each.job / f"step-{each.step:08d}"
        assert each.bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert listed[0].model_sha256 != listed[1].model_sha256 != ""
    (tmp_path / "checkpoints" / "a" / "step-00000004" / "state.json").write_text("{")
    assert [bool(each.model_sha256) for each in found(store, "a", hashes=True)] == [True, False, True]


def test_a_folder_that_no_step_has_is_neither_listed_nor_in_the_way(
    tmp_path: Path, store: CheckpointStore
) -> None:
    odd = tmp_path / "checkpoints" / "a" / "step-18446744073709551616"
    odd.mkdir()
    assert [each.step for each in found(store, "a", hashes=True)] == [0, 4, 8]
    assert remove(store, "a", 4).checkpoints == 1
    assert [each.step for each in found(store, "a")] == [0, 8] and odd.is_dir()
    assert remove(store, "a").checkpoints == 2
    assert not odd.exists()


def test_some_checkpoints_or_all_of_a_job_go(tmp_path: Path, store: CheckpointStore) -> None:
    sizes = {each.step: each.bytes for each in found(store, "a")}
    reply = remove(store, "a", 0, 4, 5)
    assert (reply.checkpoints, reply.bytes, reply.kept) == (2, sizes[0] + sizes[4], "")
    assert [each.step for each in found(store, "a")] == [8]
    reply = remove(store, "a")
    assert (reply.checkpoints, reply.bytes) == (1, sizes[8])
    assert remove(store, "a") == pb.RemoveCheckpointsReply(), "a repetition removes nothing more"
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["b"]


def in_use(store: CheckpointStore) -> list[int]:
    return [each.step for each in found(store, "a") if each.in_use]


def read_all(store: CheckpointStore, step: int, files: Iterable[FileRef]) -> None:
    for ref in files:
        offset = 0
        while offset < ref.size:
            request = ReadFileRequest(job="a", step=step, sha256=ref.sha256, offset=offset, length=1000)
            piece = store.read_piece(request)
            assert piece.file == ref
            offset += len(piece.data)


def test_what_is_read_stays_until_it_was_read(store: CheckpointStore) -> None:
    listed = store.list_files(pb.CheckpointRequest(job="a", step=4))
    assert in_use(store) == [4]
    files = list(listed.files.values())
    read_all(store, 4, files[1:])
    assert "is being read" in remove(store, "a").kept
    reply = remove(store, "a", 0, 4)
    assert (reply.checkpoints, reply.kept) == (1, "its checkpoint of step 4 is being read")
    read_all(store, 4, files[:1])
    assert in_use(store) == []
    assert remove(store, "a").checkpoints == 2


def test_a_reader_that_stops_frees_the_checkpoint_and_is_told_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("optimizer.checkpoint_store.CheckpointUse", lambda: CheckpointUse(lambda: now))
    store = CheckpointStore(tmp_path / "checkpoints")
    write(store, "a", 4)
    (ref, *_) = store.list_files(pb.CheckpointRequest(job="a", newest=True)).files.values()
    request = ReadFileRequest(job="a", step=4, sha256=ref.sha256, length=1)
    now += READ_SECONDS - 1
    store.read_piece(request)
    now += READ_SECONDS - 1
    assert in_use(store) == [4], "each piece counts"
    now += 2
    assert in_use(store) == []
    again = CheckpointStore(tmp_path / "checkpoints")  # after a restart
    again.read_piece(request)
    assert in_use(again) == [4]
    write(store, "a", 8)
    remove(store, "a", 4)
    with pytest.raises(
        FileMissing, match="job a: its checkpoint of step 4 was removed or made again"
    ) as gone:
        store.read_piece(request)
    assert "\n" not in str(gone.value)
    with pytest.raises(FileMissing, match="no checkpoint of step 4; there are: 8"):
        store.list_files(pb.CheckpointRequest(job="a", step=4))
    with pytest.raises(FileMissing, match="job b has no checkpoint yet"):
        store.list_files(pb.CheckpointRequest(job="b", newest=True))


def test_a_file_that_was_cut_is_not_listed_and_newest_falls_back(
    tmp_path: Path, store: CheckpointStore
) -> None:
    (tmp_path / "checkpoints" / "a" / "step-00000008" / "model.safetensors").write_bytes(b"")
    assert store.list_files(pb.CheckpointRequest(job="a", newest=True)).step == 4
    with pytest.raises(FileMissing, match=r"model\.safetensors has 0 bytes"):
        store.list_files(pb.CheckpointRequest(job="a", step=8))


def test_nothing_is_written_for_a_job_that_was_removed(tmp_path: Path, store: CheckpointStore) -> None:
    with store._use.writing("a"):
        assert "is being read or written" in remove(store, "a").kept
    remove(store, "a")
    with pytest.raises(Failed, match="job a: was pruned"):
        write(store, "a", 12)
    with pytest.raises(Failed, match="job a: was pruned"):
        store.save_generation("a", 2)
    assert not (tmp_path / "checkpoints" / "a").exists()
    write(store, "b", 4)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "precious").write_text("x")
    yield folder
    assert (folder / "precious").read_text() == "x"


def test_links_are_not_followed(tmp_path: Path, store: CheckpointStore, elsewhere: Path) -> None:
    root = tmp_path / "checkpoints"
    (root / "c").symlink_to(elsewhere)
    (root / "b" / "step-00000004").symlink_to(elsewhere)
    (root / "a" / "step-00000004" / "more").symlink_to(elsewhere)
    for job, name in (("c", "its folder"), ("b", "its step-00000004")):
        assert [each.problem for each in found(store, job)] == [
            f"{name} is a symbolic link, which is not followed"
        ]
        for steps in ((), (0, 4)):
            assert "is a symbolic link" in remove(store, job, *steps).kept
    assert (root / "b" / "step-00000000").is_dir()
    assert remove(store, "a").checkpoints == 3
    assert store.removal.finish() == []


def test_an_id_that_is_a_path_is_refused(store: CheckpointStore, elsewhere: Path) -> None:
    for job in ("../elsewhere", "..", "", ".", "a/step-00000004", str(elsewhere), "a\0b", "x" * 200):
        with pytest.raises(Refused, match="it names a folder"):
            remove(store, job)
        with pytest.raises(Refused, match="it names a folder"):
            found(store, job)


@pytest.mark.parametrize("steps", [(), (0, 4)])
def test_a_start_deletes_what_a_crash_has_left(
    tmp_path: Path, store: CheckpointStore, steps: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as patched:
        patched.setattr("optimizer.checkpoint_removal.shutil.rmtree", fail)
        with pytest.raises(Failed, match="checkpoints not removed: Input/output error"):
            remove(store, "a", *steps)
        assert len(found(store, "a")) == (2 if steps else 0), "it has gone from sight first"
        again = CheckpointStore(tmp_path / "checkpoints")
        assert "not deleted: Input/output error" in again.removal.finish()[0]
    assert again.removal.finish() == []
    left = {path.name for path in (tmp_path / "checkpoints").rglob("*") if path.is_dir()}
    assert not [name for name in left if name.startswith(".")]
    assert remove(again, "a").checkpoints == (2 if steps else 0)
    shutil.rmtree(tmp_path / "checkpoints")
    assert again.removal.finish() == []


def test_an_aggregator_that_was_replaced_removes_nothing(tmp_path: Path, store: CheckpointStore) -> None:
    class ClosedFence:
        def __enter__(self) -> None:
            raise Failed("epoch 2 has taken over")

        def __exit__(self, *_: object) -> None: ...

    old = CheckpointStore(tmp_path / "checkpoints", ClosedFence)
    for steps in ((), (0,)):
        with pytest.raises(Failed, match="epoch 2"):
            remove(old, "a", *steps)
    assert len(found(store, "a")) == 3
