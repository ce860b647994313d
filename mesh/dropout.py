"""Dropout whose mask on a chip follows from the seed and the chip's place in the mesh, whichever chip is there.

ttnn adds the id of a chip to a seed that is to give each chip a mask of its own. Ids follow the host's wiring: the rows
of a mesh of [2, 4] on a LoudBox have the ids 4, 0, 2, 6 and 5, 1, 3, 7.
"""

from __future__ import annotations

from typing import Any

from mesh.device import Mesh

_SEEDS = 1 << 32


def drop(mesh: Mesh, value: Any, probability: float, seed: int, *, own: bool) -> Any:
    """Zero each element with `probability`, and scale the rest by 1 / (1 - probability).

    Args:
        mesh: the mesh.
        value: tensor of tiles in the mesh's dtype.
        probability: a number in [0, 1).
        seed: seed of the mask, in [0, 2^32).
        own: whether each chip has a mask of its own, which then is that of the seed plus the number of its place,
            row by row. Otherwise all have the mask of the seed.

    Returns:
        Same shape as `value`.
    """
    options = {"probability": probability, "scale": 1 / (1 - probability)}
    dropout = mesh.tt.experimental.dropout
    if not own:
        return dropout(value, **options, seed=seed, use_per_device_seed=False)
    distances = {place - chip_id for place, chip_id in enumerate(mesh.chip_ids)}
    if len(distances) == 1:
        own_seed = (seed + distances.pop()) % _SEEDS
        return dropout(value, **options, seed=own_seed, use_per_device_seed=True)
    result = mesh.tt.empty_like(value)
    # Each call runs on one chip. ttnn makes a program for each chip anyway if their seeds differ.
    chips = zip(mesh.tt.get_device_tensors(value), mesh.tt.get_device_tensors(result), strict=True)
    for place, (operand, output) in enumerate(chips):
        own_seed = (seed + place) % _SEEDS
        dropout(operand, **options, seed=own_seed, use_per_device_seed=False, output_tensor=output)
    return result
