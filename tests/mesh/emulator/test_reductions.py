from __future__ import annotations

import numpy as np
import pytest

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.transfer import download
from tests.support.emulated import tensor


def test_invalid_dimensions_are_refused(one_chip: Mesh) -> None:
    x = tensor(one_chip, np.ones((2, 3)))
    for reduce in (tt.sum, tt.mean, tt.max, tt.min):
        with pytest.raises(RuntimeError, match="duplicate axis"):
            reduce(x, dim=[1, -1])
        with pytest.raises(RuntimeError, match="dimension 2"):
            reduce(x, dim=2)
        assert reduce(x, dim=[]).shape == ()  # An empty list means all dimensions.


def test_integers_are_summed_into_tiles(one_chip: Mesh) -> None:
    ids = tensor(one_chip, np.arange(6).reshape(2, 3), layout=tt.ROW_MAJOR_LAYOUT)
    total = tt.sum(ids, dim=1)
    assert (total.dtype, total.layout) == (tt.uint32, tt.TILE_LAYOUT)
    assert np.array_equal(download(one_chip, total), [3, 12])
    with pytest.raises(RuntimeError, match="UINT32"):
        tt.mean(ids)


def test_argmax_returns_the_first_of_equal_elements(one_chip: Mesh) -> None:
    x = tensor(one_chip, np.array([[1.0, 3.0, 3.0], [0.0, 0.0, 0.0]]))
    places = tt.argmax(x, dim=-1, keepdim=True)
    assert (places.dtype, places.layout) == (tt.uint32, tt.ROW_MAJOR_LAYOUT)
    assert np.array_equal(download(one_chip, places), [[1], [0]])
    rows = tt.to_layout(x, tt.ROW_MAJOR_LAYOUT)
    assert tt.argmax(rows, keepdim=True).shape == (1, 1)
    with pytest.raises(RuntimeError, match="dim parameter must be specified"):
        tt.argmax(x)


def test_argmax_of_integers_needs_row_major_layout(one_chip: Mesh) -> None:
    ids = tensor(one_chip, np.arange(6).reshape(2, 3))
    with pytest.raises(RuntimeError, match="expected bfloat16 or float32"):
        tt.argmax(ids, dim=1)
    rows = tt.to_layout(ids, tt.ROW_MAJOR_LAYOUT)
    assert np.array_equal(download(one_chip, tt.argmax(rows, dim=1)), [2, 2])
    with pytest.raises(RuntimeError, match="expected the last dimension"):
        tt.argmax(rows, dim=0)
