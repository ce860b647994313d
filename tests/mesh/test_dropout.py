"""Masks of chips follow their places in the mesh, whatever the ids of the chips are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mesh.axes import Axes
from mesh.device import Mesh
from mesh.dropout import drop
from mesh.placement import over_data
from mesh.transfer import download
from tests.support.emulated import tensor

SEED = 2**32 - 2  # so that seeds of later places pass the end
ROWS = [(4, 0, 2, 6), (5, 1, 3, 7)]
"""Ids of the rows of a mesh of [2, 4] on a LoudBox."""


def dropped(mesh: Mesh, *, own: bool) -> npt.NDArray[np.float32]:
    """Return which elements each chip keeps, [chips, elements]."""
    value = tensor(mesh, np.ones((mesh.chips, 1, 64, 64)), shard=0)
    result = download(mesh, drop(mesh, value, 0.5, SEED, own=own), over_data(0))
    return result.reshape(mesh.chips, -1)


def with_ids(mesh: Mesh, ids: tuple[int, ...]) -> Mesh:
    mesh.chip_ids = ids
    return mesh


@pytest.mark.parametrize("shape", [(1, 4), (4, 1)])
def test_masks_follow_places_and_not_ids(open_emulator: Callable[..., Mesh], shape: tuple[int, int]) -> None:
    mesh = open_emulator(shape, axes=Axes(data=shape.index(4)))
    first, second = (dropped(with_ids(mesh, ids), own=True) for ids in ROWS)
    assert np.array_equal(first, second)
    assert len({chip.tobytes() for chip in first}) == 4
    for place, chip in enumerate(first):
        seed = (SEED + place) % 2**32
        value = tensor(mesh, np.ones((4, 1, 64, 64)), shard=0)
        alone = download(mesh, drop(mesh, value, 0.5, seed, own=False), over_data(0)).reshape(4, -1)
        assert np.array_equal(alone[place], chip)


def test_a_common_mask_is_the_same_on_all_chips(open_emulator: Callable[..., Mesh]) -> None:
    mesh = with_ids(open_emulator((1, 4), axes=Axes(data=1)), ROWS[0])
    assert len({chip.tobytes() for chip in dropped(mesh, own=False)}) == 1


@pytest.mark.parametrize(("ids", "seed"), [((0, 1, 2, 3), SEED), ((4, 5, 6, 7), SEED - 4)])
def test_ids_in_order_take_one_call(
    open_emulator: Callable[..., Mesh], ids: tuple[int, ...], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = with_ids(open_emulator((1, 4), axes=Axes(data=1)), ids)
    calls: list[dict[str, Any]] = []
    dropout = mesh.tt.experimental.dropout
    monkeypatch.setattr(
        mesh.tt.experimental,
        "dropout",
        lambda x, **options: (calls.append(options), dropout(x, **options))[1],
    )
    dropped(mesh, own=True)
    (call,) = calls
    # ttnn adds each chip's id to the seed.
    assert (call["seed"], call["use_per_device_seed"]) == (seed, True)
