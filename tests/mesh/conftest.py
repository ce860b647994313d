"""Emulated meshes for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mesh.device import Mesh


@pytest.fixture
def one_chip(open_emulator: Callable[..., Mesh]) -> Mesh:
    """One chip, float32."""
    return open_emulator()


@pytest.fixture
def loudbox(open_emulator: Callable[..., Mesh]) -> Mesh:
    """One row of eight chips, float32, data parallel."""
    return open_emulator((1, 8))


@pytest.fixture
def numbers() -> np.random.Generator:
    """Random numbers, the same in every run."""
    return np.random.Generator(np.random.Philox(7))
