"""Emulated meshes for the worker's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from mesh.axes import Axes
from mesh.device import Mesh, open_mesh


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
def mesh(open_emulator: Callable[..., Mesh]) -> Mesh:
    """One emulated device, float32."""
    return open_emulator()
