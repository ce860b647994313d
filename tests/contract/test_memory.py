"""The emulator takes of a chip's memory what ttnn takes, buffer by buffer, and both are told alike."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.contract.mocked_board import ROOT, missing, run_on

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

SCRIPT = "tests.support.contract.memory_on_board"


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What each of the two tells."""
    real = run_on("loudbox", "-m", SCRIPT, "ttnn")
    emulated = subprocess.run(
        [sys.executable, "-m", SCRIPT, "emulator"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (real.returncode, emulated.returncode) == (0, 0), real.stderr + emulated.stderr
    return {
        "ttnn": json.loads(real.stdout.splitlines()[-1]),
        "emulator": json.loads(emulated.stdout.splitlines()[-1]),
    }


def test_every_buffer_is_told_alike(told: dict[str, Any]) -> None:
    kept, used = told["ttnn"]["True"]
    assert told["emulator"]["True"] == [{**segment, **_without_l1()} for segment in (kept, used)]
    assert kept["allocated_bytes"] == 12 * 2 * 32 * 32 * 2, "24 tiles of bfloat16 over 12 banks"
    assert used["peak_bytes"] > 0 and used["allocated_bytes"] == used["freed_bytes"] > used["peak_bytes"]


def _without_l1() -> dict[str, int]:
    """The emulator has no L1."""
    return {"l1_circular_peak_bytes": 0, "l1_buffer_peak_bytes": 0, "l1_peak_bytes": 0}


def test_a_look_at_both_ends_misses_what_came_and_went(told: dict[str, Any]) -> None:
    kept, used = told["ttnn"]["False"]
    assert kept["allocated_bytes"] == told["ttnn"]["True"][0]["allocated_bytes"]
    assert used == {**_without_l1(), "peak_bytes": 0, "allocated_bytes": 0, "freed_bytes": 0}


def test_nothing_is_left_taken(told: dict[str, Any]) -> None:
    assert (told["ttnn"]["left"], told["emulator"]["left"]) == (0, 0)
