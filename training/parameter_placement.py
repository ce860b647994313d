"""Placements of parameters: cut over tensor-parallel devices, sharded over data-parallel ones, or replicated.

Layout, wire, optimizer and checkpoints know only logical shapes. Only this module knows padding and order on the mesh.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mesh.axes import Axes
from mesh.device import Mesh
from mesh.placement import PARTIAL, REPLICATED, Placement, Placements, sharded
from services.config.device import DeviceConfig
from services.errors import Refused
from training.autograd.variable import Parameter, Split

Array = npt.NDArray[Any]

TILE = 32
"""Side of the square tiles that the device computes with."""


def choose_axes(config: DeviceConfig) -> Axes:
    """Return the mesh axes of a job's parallel strategies."""
    return Axes(config.data_axis, config.tensor_axis, config.shard_parameters)


def choose_placements(parameter: Parameter, mesh: Mesh) -> Placements:
    """Return how a parameter lies on a mesh, in dimensions of its shape there.

    Raises:
        Refused: the number of devices does not divide the parameter.
    """
    leading = len(parameter.mesh_shape) - len(parameter.shape)
    tensor = REPLICATED
    split = parameter.split
    if split is not None and mesh.tensor_size > 1:
        _check_divides(parameter, split, mesh.tensor_size)
        tensor = sharded(split.dim + leading)
    return Placements(_sharded_dim(parameter, tensor, leading, mesh), tensor)


def place_summand(parameter: Parameter, mesh: Mesh) -> Placements:
    """Return how one use of a parameter gives its gradient: each data-parallel device has the share of its own rows."""
    return Placements(REPLICATED if mesh.axes.data is None else PARTIAL, parameter.placements.tensor)


def shape_on_mesh(parameter: Parameter, mesh: Mesh) -> tuple[int, ...]:
    """Return the shape of a parameter's pieces together, with the padding that tensor-parallel devices need."""
    shape = list(parameter.mesh_shape)
    dim = parameter.placements.tensor.dim
    if dim is not None and parameter.split is not None and parameter.split.padded:
        shape[dim] = round_up_to_tiles(shape[dim], mesh.tensor_size)
    return tuple(shape)


def to_mesh(parameter: Parameter, values: Array, mesh: Mesh) -> Array:
    """Return a parameter's flat, logical values as the array whose pieces the devices get."""
    array = values.reshape(parameter.mesh_shape)
    split, dim = parameter.split, parameter.placements.tensor.dim
    if split is None or dim is None:
        return array
    if split.padded:
        shape = shape_on_mesh(parameter, mesh)
        array = np.pad(array, [(0, size - had) for size, had in zip(shape, array.shape, strict=True)])
    if split.parts:
        parts = np.split(array, np.cumsum(split.parts)[:-1], axis=dim)
        shares = [np.split(part, mesh.tensor_size, axis=dim) for part in parts]
        array = np.concatenate(
            [share for of_device in zip(*shares, strict=True) for share in of_device], axis=dim
        )
    return array


def from_mesh(parameter: Parameter, array: Array, mesh: Mesh) -> Array:
    """Return an array from the mesh as flat, logical values: the reverse of `to_mesh`."""
    split, dim = parameter.split, parameter.placements.tensor.dim
    if split is not None and dim is not None:
        if split.parts:
            devices = np.split(array, mesh.tensor_size, axis=dim)
            cuts = np.cumsum([size // mesh.tensor_size for size in split.parts])[:-1]
            shares = [np.split(device, cuts, axis=dim) for device in devices]
            array = np.concatenate(
                [share for of_part in zip(*shares, strict=True) for share in of_part], axis=dim
            )
        if split.padded:
            array = np.take(array, range(parameter.shape[split.dim]), axis=dim)
    return array.reshape(-1)


def round_up_to_tiles(size: int, devices: int) -> int:
    """Return `size` rounded up to whole tiles for each device; unchanged for one device, whose library pads."""
    return size if devices == 1 else -(-size // (TILE * devices)) * TILE * devices


def _check_divides(parameter: Parameter, split: Split, devices: int) -> None:
    if split.padded:
        return
    for size in split.parts or (parameter.shape[split.dim],):
        if size % devices:
            raise Refused(
                f"device_config.mesh_shape: {devices} tensor-parallel devices can't share the {size} of "
                f"{parameter.name} {list(parameter.shape)}; choose a number of devices that divides it"
            )


def _sharded_dim(parameter: Parameter, tensor: Placement, leading: int, mesh: Mesh) -> Placement:
    """Return where a parameter is cut over the data axis.

    Vectors and other small parameters are replicated, because gathering them costs more than it saves.
    """
    if not mesh.axes.shard_parameters or len(parameter.shape) < 2:
        return REPLICATED
    for dim, size in enumerate(parameter.shape):
        # Two strategies can't cut one dimension, and collectives need whole tiles for each device.
        if dim + leading != tensor.dim and size % (TILE * mesh.data_size) == 0:
            return sharded(dim + leading)
    return REPLICATED
