from __future__ import annotations

import numpy as np
import pytest

import mesh.emulator as tt
from mesh.device import Mesh
from tests.support.emulated import tensor


def test_results_without_changes_are_views(one_chip: Mesh) -> None:
    x = tensor(one_chip, np.ones((2, 3)))
    views = [
        tt.repeat(x, [1, 1]),
        tt.repeat_interleave(x, 1, 0),
        tt.pad(x, [(0, 0), (0, 0)], 0.0),
        tt.split(x, 3, 1)[0],
        tt.mesh_partition(x, 0, 1),
    ]
    assert all(view.buffer is x.buffer for view in views)


def test_repeat_adds_leading_dimensions(one_chip: Mesh) -> None:
    assert tt.repeat(tensor(one_chip, np.ones((2, 3))), [4, 1, 1, 2]).shape == (4, 1, 2, 6)
    assert tt.repeat(tensor(one_chip, np.ones((4, 2, 3))), [2]).shape == (4, 2, 6)


def test_front_padding_needs_row_major_layout(one_chip: Mesh) -> None:
    values = np.ones((2, 3), np.float32)
    with pytest.raises(RuntimeError, match="front padding"):
        tt.pad(tensor(one_chip, values), [(1, 0), (0, 0)], 0.0)
    rows = tensor(one_chip, values, layout=tt.ROW_MAJOR_LAYOUT)
    assert tt.pad(rows, [(1, 0), (0, 0)], 0.0).shape == (3, 3)


def test_refusals(one_chip: Mesh) -> None:
    x = tensor(one_chip, np.ones((4, 6)))
    with pytest.raises(RuntimeError, match="must sum exactly to 6"):
        tt.split(x, [2, 2], 1)
    with pytest.raises(RuntimeError, match="can't be larger than input tensor rank"):
        tt.pad(x, [(0, 1)] * 3, 0.0)
    with pytest.raises(TypeError, match="expected \\(before, after\\)"):
        tt.pad(x, [(0, -1), (0, 0)], 0.0)
    with pytest.raises(RuntimeError, match="positive"):
        tt.repeat(x, [0, 1])
    with pytest.raises(RuntimeError, match="positive"):
        tt.repeat_interleave(x, 0, 1)
    with pytest.raises(RuntimeError, match="dimension 2"):
        tt.chunk(x, 2, 2)
