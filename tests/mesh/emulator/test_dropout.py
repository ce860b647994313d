from __future__ import annotations

import hashlib

import numpy as np
import pytest

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.placement import over_data
from mesh.transfer import download
from tests.support.emulated import tensor

SHAPE = (1, 1, 512, 64)


def drop(
    mesh: Mesh, seed: int, shard: int | None = None, *, per_device: bool = True, probability: float = 0.1
):
    x = tensor(mesh, np.ones(SHAPE), shard=shard)
    return tt.experimental.dropout(
        x, probability=probability, scale=1 / (1 - probability), seed=seed, use_per_device_seed=per_device
    )


def test_the_mask_depends_on_the_seed_alone(one_chip: Mesh) -> None:
    first = download(one_chip, drop(one_chip, 5))
    assert np.array_equal(download(one_chip, drop(one_chip, 5)), first)
    assert not np.array_equal(download(one_chip, drop(one_chip, 6)), first)
    # Another mask changes every training run. If that is intended, raise the emulator's version.
    assert hashlib.sha256((first != 0).tobytes()).hexdigest()[:16] == "e3d97f1507e18989"


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.9])
def test_fraction_and_scale_of_kept_elements(one_chip: Mesh, probability: float) -> None:
    y = download(one_chip, drop(one_chip, 1, probability=probability))
    kept = (y != 0).mean()
    deviation = (probability * (1 - probability) / y.size) ** 0.5
    assert abs(kept - (1 - probability)) <= 4 * deviation
    assert np.unique(y[y != 0]) == np.float32(1 / (1 - probability))


def test_masks_of_consecutive_seeds_are_independent(one_chip: Mesh) -> None:
    masks = np.stack(
        [download(one_chip, drop(one_chip, seed, probability=0.5)).reshape(-1) > 0 for seed in range(9)]
    )
    agreement = (masks[1:] == masks[:-1]).mean(1)
    assert (np.abs(agreement - 0.5) < 4 * 0.5 / masks.shape[1] ** 0.5).all()


def test_chips_have_masks_of_their_own_by_default(loudbox: Mesh) -> None:
    own = download(loudbox, drop(loudbox, 5, shard=2), over_data(2)).reshape(8, -1)
    assert len({chip.tobytes() for chip in own}) == 8
    same = download(loudbox, drop(loudbox, 5, shard=2, per_device=False), over_data(2)).reshape(8, -1)
    assert len({chip.tobytes() for chip in same}) == 1
    replicated = drop(loudbox, 5, per_device=False)
    assert replicated.array.shape[:2] == (1, 1)
    separate = drop(loudbox, 5)
    assert separate.array.shape[:2] == (1, 8)


def test_refuses_a_seed_out_of_range(one_chip: Mesh) -> None:
    for seed in (-1, 2**32):
        with pytest.raises(TypeError, match="seed"):
            drop(one_chip, seed)
