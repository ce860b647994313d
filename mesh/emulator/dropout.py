"""Dropout. A mask depends on the seed and the position of an element alone, so the backward pass repeats it."""

from __future__ import annotations

import numpy as np

from mesh.emulator.broadcast import Array
from mesh.emulator.float32_extensions import require_dtype
from mesh.emulator.rounding import round_to_bfloat16
from mesh.emulator.tensor import Tensor, check_shape, check_tiled, fill, is_sole_owner, wrap_result
from mesh.emulator.types import DataType

_LEVELS = 1 << 16


def dropout(
    input_tensor: Tensor,
    probability: float,
    scale: float,
    seed: int,
    *,
    use_per_device_seed: bool = True,
    output_tensor: Tensor | None = None,
) -> Tensor:
    """Set elements to 0 with `probability`, in steps of 2**-16, and multiply the others by `scale`.

    The operand is tiled and bfloat16; float32 is accepted here too. Values differ from the device's, whose generator
    is another one. With `use_per_device_seed`, each chip has a mask of its own. The result is written to
    `output_tensor` if it is given, which may be the part of one chip. Raises TypeError unless `seed` is an unsigned
    32-bit number, and RuntimeError if the output has another shape, dtype or layout.
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
    dropped = np.multiply(array, masks, out=np.empty(shape, np.float32))
    if output_tensor is None:
        return wrap_result(input_tensor, dropped)
    return _write(output_tensor, dropped, like=input_tensor)


def _write(output: Tensor, dropped: Array, *, like: Tensor) -> Tensor:
    op = "experimental.dropout"
    check_tiled(op, output)
    if output.dtype is not like.dtype:
        raise RuntimeError(f"{op}: output of {output.dtype}, expected {like.dtype}")
    check_shape(op, "output", output, dropped.shape[2:])
    if is_sole_owner(output):
        return fill(output, dropped, op)
    output.array[...] = round_to_bfloat16(dropped) if like.dtype is DataType.BFLOAT16 else dropped
    return output


def _mask(seed: int, chip: int, volume: int, probability: float, scale: float) -> Array:
    """Return `volume` factors, each 0 or `scale`, from 16 random bits each."""
    bits = np.random.SFC64([seed, chip]).random_raw(-(-volume // 4)).view(np.uint16)[:volume]
    kept = bits >= np.uint16(min(_LEVELS - 1, round(probability * _LEVELS)))
    return np.multiply(kept, np.float32(scale), dtype=np.float32)
