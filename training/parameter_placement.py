"""How parameters lie on the mesh: shared out over tensor-parallel devices, sharded over data-parallel ones, or whole.

Layout, wire, optimizer and checkpoints know logical shapes only; padding and order on the mesh are known here alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mesh.axes import Axes
from mesh.device import Mesh
from mesh.placement import REPLICATED, Placement, Placements, sharded
from services.config.device import DeviceConfig
from services.errors import Refused
from training.autograd import Parameter, Split

Array = npt.NDArray[Any]

TILE = 32
"""Side of a tile, in which the device computes."""


def axes_of(config: DeviceConfig) -> Axes:
    """The mesh axes of a job's strategies."""
    return Axes(config.data_axis, config.tensor_axis, config.shard_parameters)


def placements_of(parameter: Parameter, mesh: Mesh) -> Placements:
    """How a parameter lies on a mesh, by dimensions of its shape there.

    Raises:
        Refused: the devices don't divide it.
    """
    leading = len(parameter.mesh_shape) - len(parameter.shape)
    tensor = REPLICATED
    split = parameter.split
    if split is not None and mesh.tensor_size > 1:
        _check_divides(parameter, split, mesh.tensor_size)
        tensor = sharded(split.dim + leading)
    return Placements(_sharded_dim(parameter, tensor, leading, mesh), tensor)


def to_mesh(parameter: Parameter, values: Array, mesh: Mesh) -> Array:
    """A parameter's values, flat and logical, as the array whose pieces the devices get."""
    array = values.reshape(parameter.mesh_shape)
    split, dim = parameter.split, parameter.placements.tensor.dim
    if split is None or dim is None:
        return array
    if split.padded:
        widths = [(0, 0)] * array.ndim
        widths[dim] = (0, padded_size(array.shape[dim], mesh.tensor_size) - array.shape[dim])
        array = np.pad(array, widths)
    if split.parts:
        parts = np.split(array, np.cumsum(split.parts)[:-1], axis=dim)
        shares = [np.split(part, mesh.tensor_size, axis=dim) for part in parts]
        array = np.concatenate(
            [share for of_device in zip(*shares, strict=True) for share in of_device], axis=dim
        )
    return array


def from_mesh(parameter: Parameter, array: Array, mesh: Mesh) -> Array:
    """The reverse of `to_mesh`: flat and logical."""
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


def padded_size(size: int, devices: int) -> int:
    """The least number of whole tiles for each device that holds `size`; as it is on one device, whose library pads."""
    return size if devices == 1 else -(-size // (TILE * devices)) * TILE * devices


def _check_divides(parameter: Parameter, split: Split, devices: int) -> None:
    if split.padded:
        return
    for size in split.parts or (parameter.shape[split.dim],):
        if size % devices:
            raise Refused(
                f"device_config.mesh_shape: {devices} tensor-parallel devices can't share the {size} of "
                f"{parameter.name} {list(parameter.shape)}; take a number of devices that divides it"
            )


def _sharded_dim(parameter: Parameter, tensor: Placement, leading: int, mesh: Mesh) -> Placement:
    """Where a parameter is cut over the data axis. Small ones stay whole: gathering them costs more than it saves."""
    if not mesh.axes.shard_parameters or len(parameter.shape) < 2:
        return REPLICATED
    for dim, size in enumerate(parameter.shape):
        # Both strategies can't cut one dimension, and collectives want whole tiles for each device.
        if dim + leading != tensor.dim and size % (TILE * mesh.data_size) == 0:
            return sharded(dim + leading)
    return REPLICATED
