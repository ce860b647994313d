from __future__ import annotations

import numpy as np
import pytest

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.transfer import download
from tests.support.emulated import assert_close, tensor


def make_tables(length: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    angles = np.arange(length)[:, None] * 10_000.0 ** -(np.arange(width // 2) / (width // 2))
    both = np.concatenate([angles, angles], axis=1)[None, None]
    return np.cos(both), np.sin(both)


def test_rotates_pairs_half_a_head_apart(one_chip: Mesh, numbers: np.random.Generator) -> None:
    x = numbers.standard_normal((2, 3, 40, 64))
    cos, sin = make_tables(50, 64)
    rotated = download(
        one_chip,
        tt.experimental.rotary_embedding_hf(
            tensor(one_chip, x), tensor(one_chip, cos), tensor(one_chip, sin)
        ),
    )
    pairs = (x[..., :32] + 1j * x[..., 32:]) * (cos + 1j * sin)[:, :, :40, :32]
    assert_close(rotated, np.concatenate([pairs.real, pairs.imag], axis=-1), 1e-6)


def test_rotating_back_is_the_gradient(one_chip: Mesh, numbers: np.random.Generator) -> None:
    x, dy = numbers.standard_normal((2, 1, 2, 32, 64))
    cos, sin = (tensor(one_chip, table) for table in make_tables(32, 64))
    rotate = tt.experimental.rotary_embedding
    rotated = download(one_chip, rotate(tensor(one_chip, x[None]), cos, sin))
    back = download(one_chip, rotate(tensor(one_chip, dy[None]), cos, tt.neg(sin)))
    assert np.isclose((rotated * dy).sum(), (x * back).sum(), rtol=1e-5)
    assert_close(download(one_chip, rotate(tensor(one_chip, rotated), cos, tt.neg(sin))), x[None], 1e-6)


@pytest.mark.parametrize(
    ("heads", "table", "message"),
    [
        ((1, 2, 64, 64), (1, 1, 32, 64), "must be >= input seq_len"),
        ((1, 2, 64, 64), (1, 1, 64, 32), "table of shape"),
        ((1, 2, 64, 64), (1, 2, 64, 64), "table of shape"),
        ((1, 2, 64, 96), (1, 1, 64, 96), "divisible by 64"),
        ((1, 2, 64, 16), (1, 1, 64, 16), "divisible by 64"),  # ttnn accepts it and rotates wrong elements.
    ],
)
def test_unfit_shapes_are_refused(
    one_chip: Mesh, heads: tuple[int, ...], table: tuple[int, ...], message: str
) -> None:
    x, one = tensor(one_chip, np.ones(heads)), tensor(one_chip, np.ones(table))
    for rotate in (tt.experimental.rotary_embedding, tt.experimental.rotary_embedding_hf):
        with pytest.raises(RuntimeError, match=message):
            rotate(x, one, one)


def test_partial_tiles_and_decode_mode_are_refused(one_chip: Mesh) -> None:
    x = tensor(one_chip, np.ones((1, 2, 40, 64)))
    with pytest.raises(RuntimeError, match="use rotary_embedding_hf"):
        tt.experimental.rotary_embedding(x, x, x)
    with pytest.raises(RuntimeError, match="is_decode_mode"):
        tt.experimental.rotary_embedding_hf(x, x, x, is_decode_mode=True)
