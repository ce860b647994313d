"""Whether the links of a mesh work: an all-reduce whose sum is known, along each axis; and the mesh as a picture."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mesh.axes import Axes
from mesh.collectives import all_reduce
from mesh.device import Mesh, open_mesh
from mesh.placement import Placements, sharded
from mesh.transfer import download, upload

AXES = ("rows", "columns")
_TILE = 32
_NUMBERS = 7
"""Devices hold 1, 2, ... 7, 1, ...: the sum over 32 of them is exact in bfloat16."""


@dataclass(frozen=True)
class AxisCheck:
    """What an all-reduce along one axis gave.

    Attributes:
        axis: 0 down the rows, 1 along the columns.
        devices: number of devices along it.
        seconds: it took, the first time, with the making of its program.
        wrong: text for each device whose sum is wrong.
    """

    axis: int
    devices: int
    seconds: float
    wrong: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every device has the sum."""
        return not self.wrong


def open_to_check(mesh_shape: tuple[int, int], backend: str) -> Mesh:
    """A mesh whose two axes both carry something."""
    return open_mesh(mesh_shape, backend=backend, axes=Axes(data=0, tensor=1))


def check_axis(mesh: Mesh, axis: int) -> AxisCheck:
    """Sum numbers of the devices along an axis of a mesh opened by `open_to_check`, and look at every device's sum."""
    rows, columns = mesh.shape
    numbers = np.arange(rows * columns, dtype=np.float32).reshape(mesh.shape) % _NUMBERS + 1
    pieces = Placements(sharded(2), sharded(3))
    values = np.kron(numbers, np.ones((_TILE, _TILE), np.float32))[None, None]
    tensor = upload(mesh, values, dtype=mesh.dtype, layout=mesh.tt.TILE_LAYOUT, placements=pieces)
    started = time.perf_counter()
    summed = all_reduce(mesh, tensor, axis)
    mesh.tt.synchronize_device(mesh.handle)
    seconds = time.perf_counter() - started
    got = download(mesh, summed, pieces).reshape(rows, _TILE, columns, _TILE)
    expected = np.broadcast_to(numbers.sum(axis, keepdims=True), mesh.shape)
    ids = device_ids(mesh)
    wrong = tuple(
        f"device {ids[row][column]} at [{row}, {column}] has {_shown(got[row, :, column])}, expected "
        f"{expected[row, column]:g}"
        for row in range(rows)
        for column in range(columns)
        if not np.array_equal(got[row, :, column], np.full((_TILE, _TILE), expected[row, column]))
    )
    return AxisCheck(axis, mesh.shape[axis], seconds, wrong)


def _shown(values: npt.NDArray[np.float32]) -> str:
    low, high = values.min(), values.max()
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def device_ids(mesh: Mesh) -> list[list[int]]:
    """The id of the device at each place, row by row."""
    ids = [int(each) for each in mesh.handle.get_device_ids()]
    columns = mesh.shape[1]
    return [ids[start : start + columns] for start in range(0, len(ids), columns)]


def picture(ids: list[list[int]]) -> list[str]:
    """The mesh as lines of text: device ids at their places, and which axis is which."""
    width = max(len(str(each)) for row in ids for each in row)
    margin = len(str(len(ids) - 1))
    cell = width + len("[]-")
    lines = [" " * (margin + 1) + "".join(f"{column:^{cell}}" for column in range(len(ids[0]))).rstrip()]
    for number, row in enumerate(ids):
        if number:
            lines.append(" " * (margin + 1) + "".join(f"{'|':^{cell}}" for _ in row).rstrip())
        lines.append(f"{number:>{margin}} " + "-".join(f"[{each:>{width}}]" for each in row))
    lines.append("axis 0: rows, down; axis 1: columns, to the right; [device id]")
    return lines
