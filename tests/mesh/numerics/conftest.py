"""Makes the helpers of this folder importable by name, and opens the meshes that cases run on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.axes import Axes
from mesh.device import Mesh, open_mesh

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module", params=[(1, 8), (2, 4)], ids=["1x8", "2x4"])
def emulated_mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    """A mesh of eight emulated chips, open for all tests of a file."""
    axes = Axes(data=1) if request.param == (1, 8) else Axes(data=0, tensor=1)
    with open_mesh(request.param, backend="emulator", dtype="float32", axes=axes) as mesh:
        yield mesh
