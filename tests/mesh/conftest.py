"""Emulated meshes for the tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from mesh.axes import Axes
from mesh.device import Mesh, open_mesh

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def open_emulator() -> Iterator[Callable[..., Mesh]]:
    """A function that opens an emulated mesh, closing the one it opened before; the last is closed with the test."""
    with ExitStack() as stack:

        def open_one(
            mesh_shape: tuple[int, int] = (1, 1), dtype: str = "float32", axes: Axes | None = None
        ) -> Mesh:
            stack.close()
            if axes is None:
                axes = Axes() if mesh_shape == (1, 1) else Axes(data=int(mesh_shape[0] == 1))
            return stack.enter_context(open_mesh(mesh_shape, backend="emulator", dtype=dtype, axes=axes))

        yield open_one


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
