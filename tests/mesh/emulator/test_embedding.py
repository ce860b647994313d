from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.placement import over_data
from mesh.transfer import download
from tests.support.emulated import assert_close, tensor


@pytest.mark.parametrize("table_shape", [(68, 48), (1, 1, 68, 48)])
def test_rows_and_gradient_of_the_table(
    loudbox: Mesh, numbers: np.random.Generator, table_shape: tuple[int, ...]
) -> None:
    ids = numbers.integers(0, 67, (16, 32))
    table, dy = numbers.standard_normal((68, 48)), numbers.standard_normal((1, 1, 512, 48))
    id_tensor = tensor(loudbox, ids, shard=0, layout=tt.ROW_MAJOR_LAYOUT)
    weight = tensor(loudbox, table.reshape(table_shape))
    rows = tt.embedding(id_tensor, weight, layout=tt.TILE_LAYOUT)
    assert rows.shape == (2, 32, 48)
    assert_close(download(loudbox, rows, over_data(0)), table[ids], 1e-7)
    gradient = tt.all_reduce(tt.embedding_bw(id_tensor, weight, tensor(loudbox, dy, shard=2)), cluster_axis=1)
    expected = np.zeros((68, 48))
    np.add.at(expected, ids.reshape(-1), dy[0, 0])
    assert_close(download(loudbox, gradient), expected[None, None], 1e-6)
    assert (expected[67] == 0).all()


def test_refusals(one_chip: Mesh) -> None:
    table = tensor(one_chip, np.ones((68, 48)))
    with pytest.raises(RuntimeError, match="id 68 beyond"):
        tt.embedding(tensor(one_chip, np.full((1, 32), 68)), table)
    with pytest.raises(RuntimeError, match="UINT32"):
        tt.embedding(tensor(one_chip, np.ones((1, 32), np.int32)), table)
    with pytest.raises(RuntimeError, match="divisible by tile width"):
        tt.embedding_bw(_draw_ids(one_chip, 2, 48), table, tensor(one_chip, np.ones((1, 1, 96, 48))))
    with pytest.raises(RuntimeError, match="gradient of shape"):
        tt.embedding_bw(_draw_ids(one_chip, 2, 32), table, tensor(one_chip, np.ones((2, 1, 32, 48))))
    with pytest.raises(RuntimeError, match="must be ROW_MAJOR"):
        tiled = tensor(one_chip, np.ones((2, 32), int))
        tt.embedding_bw(tiled, table, tensor(one_chip, np.ones((1, 1, 64, 48))))


def _draw_ids(mesh: Mesh, *shape: int) -> Any:
    return tensor(mesh, np.ones(shape, int), layout=tt.ROW_MAJOR_LAYOUT)
