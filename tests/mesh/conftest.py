"""Fixtures of the mesh tests: emulated meshes, and a process that has not loaded ttnn."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import mesh.backend
from mesh.descriptors.architecture import MOCK_VARIABLE
from mesh.device import Mesh


@pytest.fixture
def one_chip(open_emulator: Callable[..., Mesh]) -> Mesh:
    """Emulated mesh of one chip, float32."""
    return open_emulator()


@pytest.fixture
def loudbox(open_emulator: Callable[..., Mesh]) -> Mesh:
    """Emulated mesh of one row of eight chips, float32, data parallel."""
    return open_emulator((1, 8))


@pytest.fixture
def numbers() -> np.random.Generator:
    """Random generator with a fixed seed."""
    return np.random.Generator(np.random.Philox(7))


@pytest.fixture
def ttnn_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Environment of a process that has not loaded ttnn; it is restored after the test."""
    monkeypatch.setattr(mesh.backend, "_loaded_descriptor", None)
    with mock.patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith("TT_")]:
            del os.environ[name]
        os.environ["XDG_CACHE_HOME"] = str(tmp_path)
        os.environ["TT_METAL_LOGS_PATH"] = str(tmp_path)
        chips = tmp_path / "chips.yaml"
        chips.write_text("arch: {0: wormhole_b0}")
        os.environ[MOCK_VARIABLE] = str(chips)
        yield
