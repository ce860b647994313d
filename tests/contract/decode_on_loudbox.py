"""Text generation on emulator and ttnn in lock-step. Started by test_decode_contract.py."""

from __future__ import annotations

import pytest
import ttnn

import mesh.emulator as emulator
from tests.support.contract.decoding import MODELS, decode
from tests.support.contract.lock_step import LockStep


@pytest.mark.parametrize("model", MODELS)
def test_ttnn_and_emulator_agree_on_every_call(model: str) -> None:
    both = LockStep(emulator, ttnn)
    decode(model, both)
    called = {line.partition("(")[0] for line in both.lines}
    assert {"fill_cache", "update_cache", "softmax", "embedding"} <= called
