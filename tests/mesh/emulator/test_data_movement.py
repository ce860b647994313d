from __future__ import annotations

import numpy as np
import pytest

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.placement import over_data
from mesh.transfer import download
from tests.support.emulated import tensor


def test_ops_equal_numpy(one_chip: Mesh, numbers: np.random.Generator) -> None:
    x = numbers.standard_normal((2, 3, 32, 64)).astype(np.float32)
    a = tensor(one_chip, x)
    for moved, expected in (
        (tt.reshape(a, [6, -1, 64]), x.reshape(6, 32, 64)),
        (tt.transpose(a, 1, -2), x.swapaxes(1, 2)),
        (tt.permute(a, (3, 0, 2, 1)), x.transpose(3, 0, 2, 1)),
        (tt.reshape(tt.transpose(a, 1, 2), [1, 1, 64, 192]), x.swapaxes(1, 2).reshape(1, 1, 64, 192)),
        (tt.slice(a, [0, 1, 0, 32], [2, 3, 32, 64], [1, 1, 2, 1]), x[:, 1:, ::2, 32:]),
        (tt.concat([a, a], dim=-1), np.concatenate([x, x], -1)),
    ):
        assert np.array_equal(download(one_chip, moved), expected)


def test_shards_are_moved_on_their_chips(loudbox: Mesh, numbers: np.random.Generator) -> None:
    x = numbers.standard_normal((16, 1, 4, 32)).astype(np.float32)
    rows = tt.reshape(tensor(loudbox, x, shard=0), [1, 1, 8, 32])
    assert np.array_equal(download(loudbox, rows, over_data(2)), x.reshape(1, 1, 64, 32))
    joined = tt.concat([rows, tensor(loudbox, np.zeros((1, 1, 8, 32)))], dim=3)
    assert joined.shape == (1, 1, 8, 64)


@pytest.mark.parametrize("transposed", [False, True])
def test_heads_are_split_and_concatenated(
    one_chip: Mesh, numbers: np.random.Generator, transposed: bool
) -> None:
    x = numbers.standard_normal((2, 1, 16, (4 + 2 * 2) * 32)).astype(np.float32)
    q, k, v = tt.experimental.nlp_create_qkv_heads(
        tensor(one_chip, x), num_heads=4, num_kv_heads=2, transpose_k_heads=transposed
    )
    split = x.reshape(2, 16, 8, 32).swapaxes(1, 2)
    assert np.array_equal(download(one_chip, q), split[:, :4])
    assert np.array_equal(
        download(one_chip, k), split[:, 4:6].swapaxes(2, 3) if transposed else split[:, 4:6]
    )
    assert np.array_equal(download(one_chip, v), split[:, 6:])
    assert np.array_equal(download(one_chip, tt.experimental.nlp_concat_heads(q)), x[..., :128])


def test_heads_of_partial_tiles_are_refused(one_chip: Mesh) -> None:
    with pytest.raises(RuntimeError, match="multiple of 32"):
        tt.experimental.nlp_create_qkv_heads(tensor(one_chip, np.ones((2, 1, 32, 192))), num_heads=4)
    with pytest.raises(RuntimeError, match="multiple of 32"):
        tt.experimental.nlp_concat_heads(tensor(one_chip, np.ones((2, 4, 32, 16))))


def test_refusals(one_chip: Mesh) -> None:
    a = tensor(one_chip, np.ones((2, 64)))
    for call in (
        lambda: tt.reshape(a, [3, 64]),
        lambda: tt.reshape(a, [-1, 3]),
        lambda: tt.transpose(a, 0, 2),
        lambda: tt.permute(a, (0, 0)),
        lambda: tt.slice(a, [0, 0], [2, 65]),
        lambda: tt.concat([a, tensor(one_chip, np.ones((3, 64)))], dim=1),
        lambda: tt.concat([a, tensor(one_chip, np.ones((2, 64), int))], dim=1),
    ):
        with pytest.raises(RuntimeError):
            call()
    with pytest.raises(TypeError):
        a.shape[:-1]


def test_creation_on_the_device(one_chip: Mesh) -> None:
    device = one_chip.handle
    full = tt.full([2, 3], 0.1, dtype=tt.bfloat16, layout=tt.TILE_LAYOUT, device=device)
    assert np.unique(download(one_chip, full)) == np.float32(0.10009765625)
    count = tt.arange(0, 7, 2, dtype=tt.uint32, device=device)
    assert download(one_chip, count).tolist() == [0, 2, 4, 6]
    assert download(one_chip, tt.arange(3, dtype=tt.int32, device=device)).tolist() == [0, 1, 2]
    unset = tt.empty([2, 3], dtype=tt.float32, layout=tt.TILE_LAYOUT, device=device)
    assert np.isnan(download(one_chip, unset)).all()
