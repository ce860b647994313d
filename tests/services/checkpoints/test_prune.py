"""Tests of which checkpoints are kept, and that a removed one is complete or gone after any crash."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.checkpoints.prune import (
    list_surplus,
    mark_removed,
)
from services.checkpoints.read import (
    list_checkpoints,
    read_checkpoint,
)
from tests.services.checkpoints.test_damage import Killed, write


def folders(root: Path, steps: set[int]) -> None:
    for step in steps:
        (root / f"step-{step:08d}").mkdir(parents=True)


@pytest.mark.parametrize(
    ("written", "keep_last", "keep_every", "left"),
    [
        (50, 0, 0, [0, 10, 20, 30, 40, 50]),
        (50, 1, 0, [0, 50]),
        (50, 2, 0, [0, 40, 50]),
        (50, 1, 20, [0, 20, 40, 50]),
        (50, 1, 25, [0, 30, 50]),
        (50, 9, 0, [0, 10, 20, 30, 40, 50]),
        (30, 1, 0, [0, 30, 40, 50]),
    ],
)
def test_kept_checkpoints(
    tmp_path: Path, written: int, keep_last: int, keep_every: int, left: list[int]
) -> None:
    folders(tmp_path, {0, 10, 20, 30, 40, 50})
    for path in list_surplus(tmp_path, written, keep_last=keep_last, keep_every=keep_every):
        shutil.rmtree(mark_removed(path))
    assert [int(path.name[5:]) for path in list_checkpoints(tmp_path)] == left


def test_the_checkpoint_that_a_job_started_from_is_kept(tmp_path: Path) -> None:
    folders(tmp_path, {1000, 1010, 1020, 1030})
    surplus = list_surplus(tmp_path, 1030, keep_last=1, keep_every=0)
    assert [path.name for path in surplus] == ["step-00001010", "step-00001020"]


@given(
    steps=st.sets(st.integers(0, 200), min_size=1, max_size=30),
    keep_last=st.integers(0, 5),
    keep_every=st.integers(0, 60),
    picked=st.integers(0, 29),
)
def test_any_checkpoints_keep_the_documented_ones(
    tmp_path_factory: pytest.TempPathFactory, steps: set[int], keep_last: int, keep_every: int, picked: int
) -> None:
    root = tmp_path_factory.mktemp("job")
    folders(root, steps)
    written = sorted(steps)[picked % len(steps)]
    gone = [
        int(each.name[5:]) for each in list_surplus(root, written, keep_last=keep_last, keep_every=keep_every)
    ]
    made = sorted(step for step in steps if step <= written)
    left = [step for step in made if step not in gone]
    assert gone == sorted(gone) and set(gone) <= set(made) - {made[0], written}
    assert left[-keep_last:] == made[-keep_last:]
    if keep_last == 0:
        assert not gone
    if keep_every:
        firsts = {min(each for each in made if each // keep_every == step // keep_every) for step in made}
        assert firsts - set(left) <= set(made) & set(range(keep_every)), (
            "except in the first span, which has step 0"
        )
    shutil.rmtree(root)


def test_kill_at_any_call_of_a_removal_leaves_complete_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intact = tmp_path / "intact"
    for step in (0, 10, 20):
        write(intact, step)
    roots = (tmp_path / f"job-{number}" for number in itertools.count())
    left: list[list[int]] = []

    def attempt() -> None:
        root = next(roots)
        shutil.copytree(intact, root)
        calls_from(root)
        try:
            shutil.rmtree(mark_removed(root / "step-00000010"))
        finally:
            calls_from(None)
            left.append([read_checkpoint(path).step for path in list_checkpoints(root)])

    owners = {"rename": Path, "fsync": os, "unlink": os, "rmdir": os}
    real = {name: getattr(owner, name) for name, owner in owners.items()}
    inside: list[Path | None] = [None]
    calls, kill_at = 0, 0

    def calls_from(root: Path | None) -> None:
        nonlocal calls
        inside[0], calls = root, 0

    def patched(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += inside[0] is not None
            if inside[0] is not None and calls == kill_at:
                raise Killed
            return real[name](*arguments, **options)

        return call

    for name, owner in owners.items():
        monkeypatch.setattr(owner, name, patched(name))
    killed = True
    while killed:
        kill_at += 1
        try:
            attempt()
            killed = False
        except Killed:
            pass
    assert left == [[0, 10, 20], *[[0, 20]] * (kill_at - 1)], "complete before the rename, gone after it"
    assert kill_at > 6


def test_next_checkpoint_clears_leftovers_of_a_killed_removal(tmp_path: Path) -> None:
    for step in (0, 10):
        write(tmp_path, step)
    renamed = mark_removed(tmp_path / "step-00000000")
    (renamed / "model.safetensors").unlink()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000010"]
    write(tmp_path, 20)
    assert not renamed.exists()
