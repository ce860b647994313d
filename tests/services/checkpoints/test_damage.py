"""Tests that a checkpoint is complete or absent after any crash, and that damage is never loaded."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.checkpoints.format import (
    STATE_FILE,
    CheckpointInfo,
)
from services.checkpoints.read import (
    find_newest,
    read_checkpoint,
    read_refs,
)
from services.checkpoints.write import (
    write_checkpoint,
)
from services.errors import Failed, Refused
from services.protocol.file_refs import make_ref
from services.tensors.layout import Layout

LAYOUT = Layout.build([("a", (8, 4), True, "a", True), ("b", (4,), False, "b", False)])
FILE_NAMES = ["config.json", "model.safetensors", "optimizer.safetensors", "state.json"]


class Killed(BaseException):
    """Stand-in for SIGKILL, which no code handles."""


def write(root: Path, step: int, value: float = 1.0) -> CheckpointInfo:
    weights = np.full(LAYOUT.elements, value, np.float32)
    return write_checkpoint(
        root,
        job="job-1",
        generation=0,
        step=step,
        config_json='{"seed":1}',
        layout=LAYOUT,
        weights=weights,
        optimizer_state={"exp_avg": weights * 2},
        files={"config.json": b'{"model_type": "gpt2"}'},
    )


def rewrite_state(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change state.json and set its checksum to the new content's."""
    values = json.loads((path / "state.json").read_text())
    values.pop("sha256")
    change(values)
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    values["sha256"] = hashlib.sha256(canonical.encode()).hexdigest()
    (path / "state.json").write_text(json.dumps(values))


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("intact"), 5).path


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(FILE_NAMES), st.integers(0, 10**9))
def test_no_flipped_bit_is_loaded(intact: Path, name: str, position: int) -> None:
    file = intact / name
    original = file.read_bytes()
    bit = position % (8 * len(original))
    damaged = bytearray(original)
    damaged[bit // 8] ^= 1 << bit % 8
    file.write_bytes(damaged)
    try:
        with pytest.raises(Refused, match=name.replace(".", r"\.")) as refusal:
            (read_refs if name == STATE_FILE else read_checkpoint)(intact)
            read_checkpoint(intact)
    finally:
        file.write_bytes(original)
    assert "\n" not in str(refusal.value)


def test_the_references_to_a_checkpoint_s_files(tmp_path: Path) -> None:
    path = write(tmp_path, 5).path
    assert read_refs(path) == {file.name: make_ref(file.read_bytes()) for file in path.iterdir()}
    (path / "optimizer.safetensors").unlink()
    with pytest.raises(Refused, match=r"optimizer\.safetensors is missing"):
        read_refs(path)


@pytest.mark.parametrize("name", FILE_NAMES)
@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_truncated_files_are_refused(tmp_path: Path, name: str, share: float) -> None:
    path = write(tmp_path, 5).path
    size = (path / name).stat().st_size
    os.truncate(path / name, int(size * share))
    with pytest.raises(Refused, match=f"step-00000005: {name}"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", FILE_NAMES)
def test_missing_files_are_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, 5).path
    (path / name).unlink()
    with pytest.raises(Refused, match=f"step-00000005: {name} is missing"):
        read_checkpoint(path)


def test_missing_folder_and_folder_without_state_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="nowhere: no such folder"):
        read_checkpoint(tmp_path / "nowhere")
    with pytest.raises(Refused, match=r"state\.json is missing"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda state: state["layout"][0].update(shape=[4, 8]),
            r"a .*\[4, 8\].*\[8, 4\]",
        ),
        (lambda state: state["layout"][1].update(export_name="c"), "b is not expected"),
        (lambda state: state["layout"].pop(), "b is not expected"),
        (lambda state: state["layout"][1].update(offset=31), "entry b: offset 31.* 32"),
        (lambda state: state["layout"][1].pop("name"), r"state\.json is damaged"),
        (lambda state: state["layout"][1].pop("shape"), r"state\.json is damaged"),
        (lambda state: state["files"].pop("model.safetensors"), r"model\.safetensors"),
        (
            lambda state: state["files"].update({"../x": state["files"]["config.json"]}),
            "checkpoint file '../x'",
        ),
        (lambda state: state.update(format=2), "format 2.* 1"),
        (lambda state: state.update(step="5"), r"state\.json is damaged"),
    ],
)
def test_state_that_contradicts_the_files_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], text: str
) -> None:
    path = write(tmp_path, 5).path
    rewrite_state(path, change)
    with pytest.raises(Refused, match=text):
        read_checkpoint(path)


def test_newest_checkpoint_is_read(tmp_path: Path) -> None:
    assert find_newest(read_checkpoint, tmp_path / "nowhere") == (None, [])
    for step in (0, 10, 20):
        write(tmp_path, step, value=step)
    checkpoint, notices = find_newest(read_checkpoint, tmp_path)
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.weights[0], notices) == (20, 20.0, [])


def test_damaged_checkpoints_are_skipped_and_reported(tmp_path: Path) -> None:
    for step in (0, 10, 20, 30):
        write(tmp_path, step)
    (tmp_path / "step-00000030" / "state.json").unlink()
    os.truncate(tmp_path / "step-00000020" / "model.safetensors", 100)
    checkpoint, notices = find_newest(read_checkpoint, tmp_path)
    assert checkpoint is not None
    assert checkpoint.step == 10
    assert len(notices) == 2
    assert "step-00000030: state.json is missing" in notices[0]
    assert "step-00000020: model.safetensors has 100 bytes, expected" in notices[1]
    assert all(notice.endswith("; falling back to step-00000010") for notice in notices)


def test_job_without_intact_checkpoint_is_refused(tmp_path: Path) -> None:
    for step in (0, 10):
        write(tmp_path, step)
        os.truncate(tmp_path / f"step-{step:08d}" / "model.safetensors", 100)
    with pytest.raises(Refused, match=r"2 checkpoints, none .*step-00000010"):
        find_newest(read_checkpoint, tmp_path)


def interrupted_writes(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, attempt: Callable[[], Any]
) -> int:
    """Run `attempt` once per file-system call that it makes, and let that call fail; return the number of calls."""
    owners = {"fsync": os, "open": os, "mkdir": os, "rename": Path}
    real = {name: getattr(owner, name) for name, owner in owners.items()}
    steps, fail_at = 0, 0

    def failing(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == fail_at:
                raise error
            return real[name](*arguments, **options)

        return call

    for name, owner in owners.items():
        monkeypatch.setattr(owner, name, failing(name))
    while True:
        steps, fail_at = 0, fail_at + 1
        try:
            attempt()
        except type(error):
            continue
        except Failed:
            continue
        monkeypatch.undo()
        return fail_at - 1


def test_kill_at_any_call_leaves_the_old_or_the_new_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 10, value=10)

    def attempt() -> None:
        try:
            write(tmp_path, 20, value=20)
        finally:
            checkpoint, notices = find_newest(read_checkpoint, tmp_path)
            assert checkpoint is not None
            assert notices == []
            assert checkpoint.weights[0] == checkpoint.step
            seen.add(checkpoint.step)

    seen: set[int] = set()
    assert interrupted_writes(monkeypatch, Killed(), attempt) >= 9
    assert seen == {10, 20}
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["step-00000010", "step-00000020"]


def test_kill_while_replacing_a_damaged_checkpoint_leaves_an_intact_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 10, value=10)
    write(tmp_path, 20, value=20)
    os.truncate(tmp_path / "step-00000020" / "model.safetensors", 100)

    def attempt() -> None:
        try:
            write(tmp_path, 20, value=20)
        finally:
            checkpoint, _ = find_newest(read_checkpoint, tmp_path)
            assert checkpoint is not None
            assert checkpoint.weights[0] == checkpoint.step

    interrupted_writes(monkeypatch, Killed(), attempt)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["step-00000010", "step-00000020"]


def test_full_disk_fails_in_one_line_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    roots = (tmp_path / f"job-{index}" for index in itertools.count())

    def attempt() -> None:
        root = next(roots)
        try:
            write(root, 10)
        except Failed as error:
            assert str(error).endswith("step-00000010: not written: No space left on device (ENOSPC)")
            # Only if the very last call fails is there a complete checkpoint that was not reported.
            assert [read_checkpoint(path).step for path in root.glob("*")] in ([], [10])
            raise

    assert interrupted_writes(monkeypatch, full, attempt) >= 9


def test_failed_rename_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 10, value=1)
    real_rename = Path.rename

    def rename(source: Any, target: Any) -> None:
        if Path(source).suffix == ".partial":
            raise OSError(errno.EIO, "Input/output error")
        real_rename(source, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(Failed, match=r"not written.*EIO"):
        write(tmp_path, 10, value=2)
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-00000010"]
    assert read_checkpoint(tmp_path / "step-00000010").weights[0] == 1


def test_synchronisation_order_is_files_folder_rename_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_fsync, real_rename, order = os.fsync, Path.rename, []

    def without_drawn(name: str) -> str:
        return re.sub(r"\.[0-9a-f]{8}\.", ".", name)

    def fsync(descriptor: int) -> None:
        order.append(without_drawn(Path(f"/proc/self/fd/{descriptor}").readlink().name))
        real_fsync(descriptor)

    def rename(source: Any, target: Any) -> None:
        order.append(without_drawn(f"{Path(source).name} -> {Path(target).name}"))
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    write(tmp_path, 10)
    assert order == [
        "model.safetensors",
        "optimizer.safetensors",
        "config.json",
        "state.json",
        ".step-00000010.partial",
        ".step-00000010.partial -> step-00000010",
        tmp_path.name,
    ]
