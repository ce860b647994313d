"""Conversion between the flat weights of a layout and the tensors of `model.safetensors`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from services.checkpoints.format import CONSTANTS_FILE
from services.errors import Refused
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Entry, Layout


def export_shape(entry: Entry) -> tuple[int, ...]:
    """Return the shape of an entry's tensor in `model.safetensors`."""
    return entry.shape[::-1] if entry.export_transpose else entry.shape


def export_tensors(
    layout: Layout, weights: Float32Array, constants: Mapping[str, Float32Array]
) -> dict[str, Float32Array]:
    """Return all tensors of `model.safetensors`, by Hugging Face's names.

    Args:
        layout: layout of the weights.
        weights: [elements] float32. The tensors of the layout are views of it.
        constants: further tensors by name, as `read_constants` returns them.

    Raises:
        Refused: two tensors have the same name.
    """
    tensors: dict[str, Float32Array] = {}
    for entry in layout.entries:
        if entry.export_name in tensors or entry.export_name in constants:
            raise Refused(
                f"layout entry {entry.name}: export name {entry.export_name} is used twice;"
                " each tensor of model.safetensors needs its own name"
            )
        values = weights[entry.offset : entry.stop].reshape(entry.shape)
        tensors[entry.export_name] = values.T if entry.export_transpose else values
    return {**tensors, **constants}


def import_tensor(entry: Entry, tensor: NDArray[np.generic], weights: Float32Array) -> None:
    """Copy an entry's tensor of `model.safetensors` to its range of the weights.

    Args:
        entry: the entry.
        tensor: its tensor.
        weights: [elements] float32, changed in place.

    Raises:
        Refused: the tensor's shape or dtype is not the entry's.
    """
    if tensor.dtype != np.float32 or tensor.shape != export_shape(entry):
        raise Refused(
            f"{entry.export_name} is {tensor.dtype} {list(tensor.shape)},"
            f" expected float32 {list(export_shape(entry))}"
        )
    values = tensor.T if entry.export_transpose else tensor
    weights[entry.offset : entry.stop].reshape(entry.shape)[...] = values


def read_constants(files: Mapping[str, bytes]) -> dict[str, Float32Array]:
    """Return the tensors of the worker's constants file by name, sorted; none if the worker sent no such file.

    Args:
        files: the worker's files by name.

    Raises:
        Refused: the file is not a safetensors file of float32 tensors.
    """
    if CONSTANTS_FILE not in files:
        return {}
    try:
        constants = load(files[CONSTANTS_FILE])
    except (
        SafetensorError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:  # all but the first: a dtype that numpy lacks
        raise Refused(f"{CONSTANTS_FILE}: not a safetensors file of float32: {error}") from None
    for name, tensor in constants.items():
        if tensor.dtype != np.float32:
            raise Refused(f"{CONSTANTS_FILE}: {name} is {tensor.dtype}, expected float32")
    # The library's order varies from call to call, and the model file's bytes must not depend on it.
    return dict(sorted(constants.items()))
