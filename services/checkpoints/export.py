"""Between the flat weights of a layout and the tensors of `model.safetensors`."""

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
    """Shape of the entry's tensor in `model.safetensors`."""
    return entry.shape[::-1] if entry.export_transpose else entry.shape


def export_tensors(
    layout: Layout, weights: Float32Array, constants: Mapping[str, Float32Array]
) -> dict[str, Float32Array]:
    """All tensors of `model.safetensors` by Hugging Face's names; those of the layout are views of the weights.

    Raises:
        Refused: two tensors have the same name.
    """
    tensors: dict[str, Float32Array] = {}
    for entry in layout.entries:
        if entry.export_name in tensors or entry.export_name in constants:
            raise Refused(
                f"layout entry {entry.name}: export name {entry.export_name} is another tensor's already;"
                " every tensor of model.safetensors needs a name of its own"
            )
        values = weights[entry.offset : entry.stop].reshape(entry.shape)
        tensors[entry.export_name] = values.T if entry.export_transpose else values
    return {**tensors, **constants}


def import_tensor(entry: Entry, tensor: NDArray[np.generic], weights: Float32Array) -> None:
    """Copy the entry's tensor of `model.safetensors` to its place in the weights.

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
    """The tensors of the worker's constants file by name, in the order of names; none if it gave none.

    Raises:
        Refused: the file is no safetensors file of float32 tensors.
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
    ) as error:  # of a dtype that numpy lacks, the others
        raise Refused(f"{CONSTANTS_FILE}: not a safetensors file of float32: {error}") from None
    for name, tensor in constants.items():
        if tensor.dtype != np.float32:
            raise Refused(f"{CONSTANTS_FILE}: {name} is {tensor.dtype}, expected float32")
    # The library hands them out in another order each time; the model file's bytes must not hang on that.
    return dict(sorted(constants.items()))
