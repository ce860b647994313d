"""The first checkpoint of a job that starts from another one's."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer.checkpoint_store import CheckpointStore
from services.checkpoints.read import read_checkpoint
from services.config.job import JobConfig
from services.errors import Failed, Refused, is_out_of_space
from services.tensors.layout import Layout

LAYOUT = Layout.build([("weight", (3, 2), True, "weight", False)])
WEIGHTS = np.arange(6, dtype=np.float32)
STATE = {"momentum_buffer": np.full(6, 0.5, np.float32), "applied": np.array([40])}


def config(**fields: Any) -> JobConfig:
    record = {
        "steps": 100,
        "model": {"model_type": "linear_regression"},
        "optimizer": {"type": "sgd", "momentum": 0.9},
    }
    return JobConfig.model_validate(record | fields)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Return a store with a checkpoint of step 40 of the job `earlier`."""
    store = CheckpointStore(tmp_path / "checkpoints")
    files = {"config.json": b"{}"}
    store.write("earlier", 3, 40, config(), LAYOUT, WEIGHTS, STATE, files)
    return store


def start(store: CheckpointStore, **fields: Any) -> JobConfig:
    """Return a config that starts from that checkpoint."""
    sha256 = read_checkpoint(folder(store, "earlier")).model_sha256
    return config(start_from={"job": "earlier", "step": 40, "model_sha256": sha256, **fields})


def folder(store: CheckpointStore, job: str, step: int = 40) -> Path:
    return store._root / job / f"step-{step:08d}"


def test_files_are_shared_and_the_record_is_the_new_job_s(store: CheckpointStore) -> None:
    new = start(store, step_counter="continue")
    store.start_from("new", new)
    made = read_checkpoint(folder(store, "new"))
    assert (made.job, made.generation, made.step, made.config_json) == ("new", 0, 40, new.to_json())
    assert made.weights.tolist() == WEIGHTS.tolist() and made.optimizer_state["applied"][0] == 40
    for name in ("model.safetensors", "optimizer.safetensors", "config.json"):
        assert (folder(store, "new") / name).samefile(folder(store, "earlier") / name)


def test_without_the_optimizer_s_state_it_begins_with_zeros(store: CheckpointStore) -> None:
    store.start_from("new", start(store, optimizer=False))
    made = read_checkpoint(folder(store, "new", 0))
    assert (made.step, made.optimizer_state["applied"][0]) == (0, 0)
    assert not made.optimizer_state["momentum_buffer"].any()
    assert made.optimizer_state["momentum_buffer"].shape == (6,)


def test_a_job_that_has_a_checkpoint_does_not_start_again(store: CheckpointStore) -> None:
    store.write("new", 1, 50, config(), LAYOUT, WEIGHTS, STATE, {})
    store.start_from("new", start(store, step_counter="continue"))
    assert not folder(store, "new").exists()


def test_where_there_are_no_links_files_are_copied(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMLINK, "Too many links")

    monkeypatch.setattr(os, "link", refuse)
    store.start_from("new", start(store))
    assert read_checkpoint(folder(store, "new", 0)).weights.tolist() == WEIGHTS.tolist()
    model = "model.safetensors"
    assert not (folder(store, "new", 0) / model).samefile(folder(store, "earlier") / model)


def test_a_full_disk_leaves_nothing_and_may_be_tried_again(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "link", refuse)
        full.setattr("services.checkpoints.start.shutil.copyfile", refuse)
        with pytest.raises(Failed) as caught:
            store.start_from("new", start(store))
    assert is_out_of_space(caught.value)
    assert not list((store._root / "new").iterdir())
    store.start_from("new", start(store))
    assert folder(store, "new", 0).is_dir()


def test_another_checkpoint_than_the_job_names_is_refused(store: CheckpointStore) -> None:
    with pytest.raises(Refused, match="submit it again"):
        store.start_from("new", start(store, model_sha256="ab" * 32))
    with pytest.raises(Refused, match="no such folder"):
        store.start_from("new", start(store, step=30))
    (store._root / "earlier" / "void.json").write_text(json.dumps([[3, 20]]))
    with pytest.raises(Refused, match="checkpoint of step 40 of job earlier: void"):
        store.start_from("new", start(store))
    assert not (store._root / "new").exists()
