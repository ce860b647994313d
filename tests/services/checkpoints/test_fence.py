"""Tests of two processes on one folder, one of which has been replaced without knowing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from services.checkpoints.format import (
    CheckpointInfo,
)
from services.checkpoints.read import (
    list_checkpoints,
    read_checkpoint,
)
from services.checkpoints.write import (
    Fence,
    write_checkpoint,
)
from services.errors import Failed
from services.tensors.layout import Layout

LAYOUT = Layout.build([("a", (8, 4), True, "a", True)])


def write(root: Path, step: int, value: float, fence: Fence | None = None) -> CheckpointInfo:
    weights = np.full(LAYOUT.elements, value, np.float32)
    return write_checkpoint(
        root,
        job="job-1",
        generation=1,
        step=step,
        config_json="{}",
        layout=LAYOUT,
        weights=weights,
        optimizer_state={},
        files={},
        **({} if fence is None else {"fence": fence}),
    )


def fence_of_replaced(then: Callable[[], None] = lambda: None) -> Fence:
    """Return the fence of a process that is replaced just before it enters the fence."""

    @contextmanager
    def fence() -> Iterator[None]:
        then()
        raise Failed("epoch 2 has taken over")
        yield

    return fence


def test_replaced_process_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, 10, value=1)
    for step in (10, 20):
        with pytest.raises(Failed, match="epoch 2 has taken over"):
            write(tmp_path, step, value=2, fence=fence_of_replaced())
        assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]
    assert read_checkpoint(tmp_path / "step-00000010").weights[0] == 1


def test_replaced_process_does_not_remove_what_its_successor_writes(tmp_path: Path) -> None:
    theirs = tmp_path / ".step-00000010.0123abcd.partial"
    theirs.mkdir()
    with pytest.raises(Failed, match="epoch 2 has taken over"):
        write(tmp_path, 10, value=1, fence=fence_of_replaced())
    assert list(tmp_path.iterdir()) == [theirs]
    write(tmp_path, 10, value=1)
    assert not theirs.exists(), "the owner removes leftovers of others"


def test_two_writers_of_one_step_do_not_mix(tmp_path: Path) -> None:
    def other_writer() -> None:
        write(tmp_path, 10, value=2)

    with pytest.raises(Failed, match="epoch 2 has taken over"):
        write(tmp_path, 10, value=1, fence=fence_of_replaced(other_writer))
    (path,) = list_checkpoints(tmp_path)
    assert read_checkpoint(path).weights[0] == 2
    assert list(tmp_path.iterdir()) == [path]


def test_final_rename_is_inside_the_fence(tmp_path: Path) -> None:
    seen = []

    @contextmanager
    def fence() -> Iterator[None]:
        seen.append([path.name for path in list_checkpoints(tmp_path)])
        yield
        seen.append([path.name for path in list_checkpoints(tmp_path)])

    write(tmp_path, 10, value=1, fence=fence)
    assert seen == [[], ["step-00000010"]]
