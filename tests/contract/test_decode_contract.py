"""Text generation makes calls that real ttnn accepts, and the same calls for each dtype."""

from __future__ import annotations

import re

import pytest

import mesh.emulator as emulator
from tests.support.contract.decoding import MODELS, decode
from tests.support.contract.lock_step import LockStep
from tests.support.contract.mocked_board import missing_requirement, run_on_board

REASON = missing_requirement()


@pytest.mark.long
@pytest.mark.skipif(REASON is not None, reason=REASON or "")
def test_on_the_loudbox() -> None:
    arguments = ("-q", "-p", "no:cacheprovider", "--timeout=500", "tests/contract/decode_on_loudbox.py")
    done = run_on_board("loudbox", "-m", "pytest", *arguments, timeout_seconds=600)
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-2_000:]}"
    assert " passed" in done.stdout


class RecordedEmulator(LockStep):
    """Recorder of calls on the emulator alone."""

    __name__ = "mesh.emulator"


@pytest.mark.parametrize("model", MODELS)
def test_float32_makes_the_calls_of_bfloat16(model: str) -> None:
    runs = []
    for dtype in ("bfloat16", "float32"):
        module = RecordedEmulator(emulator)
        decode(model, module, dtype)
        # Reading bfloat16 takes an extra cast on the host.
        on_device = [line for line in module.lines if "to_dtype(" not in line]
        runs.append([re.sub(r"BFLOAT16|FLOAT32|#\d+", "", line) for line in on_device])
    assert runs[0] == runs[1]
