"""Meshes of the numerics tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mesh.axes import Axes
from mesh.device import Mesh, open_mesh


@pytest.fixture(scope="module", params=[(1, 8), (2, 4)], ids=["1x8", "2x4"])
def emulated_mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    """Emulated mesh of eight chips, shared by the tests of a file."""
    axes = Axes(data=1) if request.param == (1, 8) else Axes(data=0, tensor=1)
    with open_mesh(request.param, backend="emulator", dtype="float32", axes=axes) as mesh:
        yield mesh
