"""The calls of a model's ranges, one after the other, are those of the whole model, and ttnn accepts them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mesh.emulator as emulator
from mesh.descriptors.choose import PATH_VARIABLE, describe_line
from mesh.descriptors.read import format_textproto
from tests.support.contract.lock_step import LockStep
from tests.support.contract.mocked_board import missing_requirement, run_on_board
from tests.support.contract.ranges import CASES, run_whole_and_ranges

REASON = missing_requirement()


@pytest.mark.long
@pytest.mark.skipif(REASON is not None, reason=REASON or "")
def test_on_the_loudbox() -> None:
    arguments = ("-q", "-p", "no:cacheprovider", "--timeout=500", "tests/contract/ranges_on_loudbox.py")
    done = run_on_board("loudbox", "-m", "pytest", *arguments, timeout_seconds=600)
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-2_000:]}"
    assert " passed" in done.stdout


@pytest.mark.long
@pytest.mark.skipif(REASON is not None, reason=REASON or "")
def test_a_pipeline_runs_on_submeshes_of_the_loudbox(tmp_path: Path) -> None:
    path = tmp_path / "board.textproto"
    path.write_text(format_textproto(describe_line((8, 1), 2)))
    done = run_on_board(
        "loudbox", "-m", "tests.support.contract.stages_on_board", str(tmp_path), "4", "1",
        environment={PATH_VARIABLE: str(path), "XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "losses": 2,
        "ranges": [3, 2, 3, 1, 2, 0, 1, 0],
        "shape": "4x1",
        "is known": True,
    }


class RecordedEmulator(LockStep):
    """Recorder of calls on the emulator alone."""

    __name__ = "mesh.emulator"


@pytest.mark.parametrize(
    ("model", "strategy", "mesh"),
    [
        pytest.param(*case, marks=() if index in (1, 2) else pytest.mark.long)
        for index, case in enumerate(CASES)
    ],
)
def test_ranges_make_the_calls_of_the_whole_model(
    model: str, strategy: str, mesh: tuple[int, int], tmp_path: Path
) -> None:
    whole, parts = run_whole_and_ranges(model, strategy, mesh, RecordedEmulator(emulator), tmp_path)
    assert len(whole) > 100
    assert parts == whole
