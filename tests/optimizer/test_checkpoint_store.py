"""Files of an optimizer: generation, epoch, and the newest checkpoint that is not void."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from optimizer.checkpoint_store import CheckpointStore, epoch_file
from protos import cluster_pb2 as pb
from services.config.job import JobConfig
from services.config.models import LinearRegressionConfig
from services.errors import Failed, Refused
from services.files.errors import FileMissing
from services.protocol.versions import LAST_EPOCH, LAST_GENERATION
from services.tensors.layout import Layout
from tests.support.anything import is_one_line


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=20) | st.integers().map(lambda number: str(number).encode()))
@example(content=b"9" * 5000)
@example(content=str(LAST_GENERATION + 1).encode())
@example(content=b"-1")
def test_any_generation_file(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    root = tmp_path_factory.getbasetemp() / "store"
    (root / "a").mkdir(parents=True, exist_ok=True)
    (root / "a" / "generation").write_bytes(content)
    try:
        assert 0 <= CheckpointStore(root).read_generation("a") <= LAST_GENERATION
    except Refused as error:
        assert is_one_line(error)
        assert "/a/generation: damaged, " in str(error)


@settings(max_examples=50, deadline=None)
@given(content=st.binary(max_size=20) | st.integers().map(lambda number: str(number).encode()))
@example(content=str(LAST_EPOCH + 1).encode())
def test_any_epoch_file(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "epoch"
    path.write_bytes(content)
    try:
        assert 0 <= epoch_file(path).read() <= LAST_EPOCH
    except Refused as error:
        assert is_one_line(error)
        assert "/epoch: damaged, " in str(error)


def test_an_epoch_file_returns_what_was_written(tmp_path: Path) -> None:
    file = epoch_file(tmp_path / "epoch")
    assert file.read() == 0
    for epoch in (1, 7, LAST_EPOCH):
        file.write(epoch)
        assert epoch_file(tmp_path / "epoch").read() == epoch
    with pytest.raises(Failed, match=r"missing/epoch: .*No such file"):
        epoch_file(tmp_path / "missing" / "epoch").write(1)


@contextmanager
def closed_fence() -> Iterator[None]:
    raise Failed("epoch 2 has taken over")
    yield


def test_an_aggregator_that_was_replaced_stores_no_generation(tmp_path: Path) -> None:
    CheckpointStore(tmp_path).save_generation("a", 3)
    with pytest.raises(Failed, match="epoch 2"):
        CheckpointStore(tmp_path, closed_fence).save_generation("a", 4)
    assert CheckpointStore(tmp_path).read_generation("a") == 3


def write(store: CheckpointStore, *versions: tuple[int, int]) -> None:
    """Write checkpoints of job a, each of a generation and a step."""
    config = JobConfig(model=LinearRegressionConfig())
    layout = Layout.build([("weight", (3,), True, "weight", False)])
    for generation, step in versions:
        weights = np.full(3, step, np.float32)
        store.write("a", generation, step, config, layout, weights, {}, {"config.json": b"{}"})


def test_a_job_without_weights_that_count_begins_again(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    write(store, (1, 0), (1, 4))
    newest, (notice,) = store.read_newest("a", [pb.Void(generation=1)])
    assert newest is None and "begins again" in notice
    assert (tmp_path / "a" / "void.json").read_text() == "[[1, -1]]"
    assert store.read_newest("a")[0] is None, "a restored queue does not know of it"
    with pytest.raises(FileMissing, match="none intact"):
        store.list_files(pb.CheckpointRequest(job="a", newest=True))
    write(store, (2, 0))
    newest, _ = store.read_newest("a")
    assert newest is not None and (newest.generation, newest.step) == (2, 0)
    assert store.list_files(pb.CheckpointRequest(job="a", newest=True)).step == 0, (
        "and not the newer one that is void"
    )
    (tmp_path / "a" / "step-00000004" / "state.json").write_text("{")
    (tmp_path / "a" / "step-00000000" / "state.json").write_text("{")
    with pytest.raises(Refused, match="none intact"):
        store.read_newest("a")


def test_a_void_checkpoint_is_skipped_but_not_removed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    write(store, (1, 0), (1, 4), (1, 5), (2, 6))
    remembered = tmp_path / "a" / "void.json"

    def newest(*void: tuple[int, int]) -> tuple[int, int]:
        if void:
            remembered.unlink(missing_ok=True)
        voids = [pb.Void(generation=each[0], step=each[1]) for each in void]
        checkpoint, notices = store.read_newest("a", voids)
        assert checkpoint is not None
        return checkpoint.step, sum("void" in notice for notice in notices)

    assert newest() == newest((1, 3)) == (6, 0), "step 6 is of a later generation than the void one"
    assert newest((2, 4), (1, 5)) == (4, 2)
    assert newest((2, 0)) == (0, 3)
    assert newest() == (0, 3), "a restored queue does not know what is void"
    assert remembered.read_text() == "[[2, 0]]"
    remembered.write_text("[[2")
    with pytest.raises(Refused, match=r"void\.json: damaged"):
        newest()
    assert newest((1, 4), (1, 5), (2, 5), (2, 6)) == (4, 2)
    assert remembered.read_text() == "[[1, 4], [2, 5]]", "what another one contains is left out"
    remembered.unlink()
    closed = CheckpointStore(tmp_path, closed_fence)
    checkpoint, notices = closed.read_newest("a", [pb.Void(generation=2, step=4)])
    assert checkpoint is not None and checkpoint.step == 4
    assert "void.json: not written" in notices[0]
    assert len(list((tmp_path / "a").glob("step-*"))) == 4
