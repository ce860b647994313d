from __future__ import annotations

import numpy as np
import pytest

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.placement import over_data
from mesh.transfer import download
from tests.support.emulated import tensor


def zeros(mesh: Mesh, *shape: int) -> tt.Tensor:
    return tt.zeros(list(shape), dtype=mesh.dtype, layout=tt.TILE_LAYOUT, device=mesh.handle)


def test_fill_with_a_prompt_then_update_by_token(one_chip: Mesh, numbers: np.random.Generator) -> None:
    x = numbers.standard_normal((1, 2, 40, 32)).astype(np.float32)
    cache = zeros(one_chip, 1, 2, 64, 32)
    tt.fill_cache(cache, tensor(one_chip, x[:, :, :37]), 0)
    for token in range(37, 40):
        tt.update_cache(cache, tensor(one_chip, x[:, :, token : token + 1]), token)
    assert np.array_equal(download(one_chip, cache), np.pad(x, [(0, 0), (0, 0), (0, 24), (0, 0)]))


def test_an_exclusive_cache_is_written_in_place(one_chip: Mesh) -> None:
    cache, row = zeros(one_chip, 1, 1, 32, 32), tensor(one_chip, np.ones((1, 1, 1, 32)))
    tt.update_cache(cache, row, 0)
    elements = cache.array
    address = elements.ctypes.data
    del elements
    tt.update_cache(cache, row, 1)
    assert cache.array.ctypes.data == address


def test_copies_of_the_cache_keep_their_values(one_chip: Mesh) -> None:
    cache, row = zeros(one_chip, 1, 1, 32, 32), tensor(one_chip, np.ones((1, 1, 1, 32)))
    others = [
        tt.typecast(cache, tt.float32),
        tt.slice(cache, [0, 0, 0, 0], [1, 1, 16, 32]),
        tt.permute(cache, (0, 1, 3, 2)),
        cache.cpu(),
    ]
    tt.update_cache(cache, row, 0)
    assert download(one_chip, cache).sum() == 32
    for other in others[:3]:
        assert download(one_chip, other).sum() == 0
    assert others[3].to_numpy().sum() == 0


def test_a_cache_with_a_view_is_refused(one_chip: Mesh) -> None:
    cache, row = zeros(one_chip, 1, 1, 32, 32), tensor(one_chip, np.ones((1, 1, 1, 32)))
    view = tt.reshape(cache, [32, 32])
    with pytest.raises(RuntimeError, match="shares"):
        tt.update_cache(cache, row, 0)
    del view
    written = tt.update_cache(cache, row, 0)
    assert download(one_chip, written).sum() == 32


def test_each_chip_has_its_own_tokens(loudbox: Mesh) -> None:
    cache = zeros(loudbox, 1, 1, 32, 32)
    rows = np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1) * np.ones((1, 8, 1, 32), np.float32)
    tt.update_cache(cache, tensor(loudbox, rows, shard=1), 5)
    shards = download(loudbox, cache, over_data(1))
    assert np.array_equal(shards[0, :, 5, 0], np.arange(8))
    assert shards.sum() == 32 * np.arange(8).sum()


@pytest.mark.parametrize(
    ("shape", "token", "offset", "message"),
    [
        ((1, 2, 1, 32), 64, 0, "within the window of 64"),  # ttnn silently accepts this and the next.
        ((1, 2, 1, 32), 0, 1, "must be <= the 1 rows"),
        ((1, 3, 1, 32), 0, 0, "for a cache of"),
        ((1, 2, 1, 64), 0, 0, "for a cache of"),
        ((2, 2, 1, 32), 0, 0, "batch size must be 1"),
    ],
)
def test_update_refuses(
    one_chip: Mesh, shape: tuple[int, ...], token: int, offset: int, message: str
) -> None:
    with pytest.raises(RuntimeError, match=message):
        tt.update_cache(
            zeros(one_chip, 1, 2, 64, 32), tensor(one_chip, np.ones(shape)), token, batch_offset=offset
        )


@pytest.mark.parametrize(
    ("tokens", "sequence", "first", "message"),
    [
        (65, 0, 0, "must be <= cache tensor height"),
        (33, 0, 32, "must be <= cache tensor height"),
        (5, 0, 5, "must be a multiple of TILE_HEIGHT"),
        (5, 1, 0, "must be less than cache tensor batch size"),
    ],
)
def test_fill_refuses(one_chip: Mesh, tokens: int, sequence: int, first: int, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        tt.fill_cache(
            zeros(one_chip, 1, 2, 64, 32),
            tensor(one_chip, np.ones((1, 2, tokens, 32))),
            sequence,
            update_idx=first,
        )
