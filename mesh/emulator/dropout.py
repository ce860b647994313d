"""Dropout. A mask depends on the seed and the position of an element alone, so the backward pass repeats it."""

from __future__ import annotations

import numpy as np

from mesh.emulator.broadcast import Array
from mesh.emulator.float32_extensions import require_dtype
from mesh.emulator.tensor import Tensor, check_tiled, wrap_result

_LEVELS = 1 << 16


def dropout(
    input_tensor: Tensor, probability: float, scale: float, seed: int, *, use_per_device_seed: bool = True
) -> Tensor:
    """Set elements to 0 with `probability`, in steps of 2**-16, and multiply the others by `scale`.

    The operand is tiled and bfloat16; float32 is accepted here too. Values differ from the device's, whose generator
    is another one. With `use_per_device_seed`, each chip has a mask of its own. Raises TypeError unless `seed` is an
    unsigned 32-bit number.
    """
    op = "experimental.dropout"
    check_tiled(op, input_tensor)
    require_dtype(op, input_tensor.dtype)
    if not 0 <= seed < 1 << 32:
        raise TypeError(
            f"dropout(): incompatible function arguments: seed {seed}, expected an unsigned 32-bit number"
        )
    array = input_tensor.array
    mesh = input_tensor.mesh
    chips = tuple(mesh.shape) if use_per_device_seed and mesh is not None else (1, 1)
    shape = (*np.broadcast_shapes(chips, array.shape[:2]), *array.shape[2:])
    volume = int(np.prod(array.shape[2:]))
    masks = np.empty((*chips, *array.shape[2:]), np.float32)
    for row in range(chips[0]):
        for col in range(chips[1]):
            masks[row, col] = _mask(seed, row * chips[1] + col, volume, probability, scale).reshape(
                array.shape[2:]
            )
    return wrap_result(input_tensor, np.multiply(array, masks, out=np.empty(shape, np.float32)))


def _mask(seed: int, chip: int, volume: int, probability: float, scale: float) -> Array:
    """Return `volume` factors, each 0 or `scale`, from 16 random bits each."""
    bits = np.random.SFC64([seed, chip]).random_raw(-(-volume // 4)).view(np.uint16)[:volume]
    kept = bits >= np.uint16(min(_LEVELS - 1, round(probability * _LEVELS)))
    return np.multiply(kept, np.float32(scale), dtype=np.float32)
