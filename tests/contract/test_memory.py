"""The emulator counts the memory that real ttnn allocates on a chip, buffer by buffer."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.contract.mocked_board import ROOT, missing_requirement, run_on_board

pytestmark = pytest.mark.skipif(missing_requirement() is not None, reason=missing_requirement() or "")

SCRIPT = "tests.support.contract.memory_on_board"


@pytest.fixture(scope="module")
def segments() -> dict[str, Any]:
    """Segments of each module, from each kind of capture."""
    real = run_on_board("loudbox", "-m", SCRIPT, "ttnn")
    assert real.returncode == 0, real.stderr
    return {
        "ttnn": json.loads(real.stdout.splitlines()[-1]),
        "emulator": json.loads(_run_on_emulator(SCRIPT).splitlines()[-1]),
    }


def _run_on_emulator(script: str, *arguments: str) -> str:
    """Run a script in a process on the emulator and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", script, "emulator", *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_buffer_is_counted(segments: dict[str, Any]) -> None:
    kept, used = segments["ttnn"]["True"]
    assert segments["emulator"]["True"] == [{**segment, **_no_l1()} for segment in (kept, used)]
    assert kept["allocated_bytes"] == 12 * 2 * 32 * 32 * 2, "24 tiles of bfloat16 over 12 banks"
    assert used["peak_bytes"] > 0 and used["allocated_bytes"] == used["freed_bytes"] > used["peak_bytes"]


def _no_l1() -> dict[str, int]:
    """L1 figures of the emulator, which has no L1."""
    return {"l1_circular_peak_bytes": 0, "l1_buffer_peak_bytes": 0, "l1_peak_bytes": 0}


def test_allocator_figures_miss_freed_buffers(segments: dict[str, Any]) -> None:
    kept, used = segments["ttnn"]["False"]
    assert kept["allocated_bytes"] == segments["ttnn"]["True"][0]["allocated_bytes"]
    assert used == {**_no_l1(), "peak_bytes": 0, "allocated_bytes": 0, "freed_bytes": 0}


CELLS = ("gpt2_bare-tp-1x2", "llama-fsdp-1x2", "mlp-ddp-1x2")
"""Cells with everything that ttnn allocates besides results: gradients of composite ops, collectives, padded heads."""


@pytest.mark.long
def test_a_training_step_has_ttnn_s_peak() -> None:
    script = "tests.support.contract.peak_memory"
    real = run_on_board("n300", "-m", script, "ttnn", *CELLS)
    assert real.returncode == 0, real.stderr
    peaks = json.loads(real.stdout.splitlines()[-1])
    emulated = json.loads(_run_on_emulator(script, *CELLS).splitlines()[-1])
    assert emulated == pytest.approx(peaks, rel=0.03)


def test_all_memory_is_freed(segments: dict[str, Any]) -> None:
    assert (segments["ttnn"]["left"], segments["emulator"]["left"]) == (0, 0)
