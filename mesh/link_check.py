"""Checks the links of a mesh by an all-reduce with a known sum along each axis, and draws the mesh as text."""

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

AXIS_NAMES = ("rows", "columns")
_TILE = 32
_LARGEST_VALUE = 7
"""Devices hold 1, 2, ... 7, 1, ...: sums over up to 32 of them are exact in bfloat16."""


@dataclass(frozen=True)
class AxisCheck:
    """Result of an all-reduce along one axis.

    Attributes:
        axis: 0 for down the rows, 1 for along the columns.
        devices: number of devices along the axis.
        seconds: duration of the first run, which includes building its program.
        wrong_sums: one text per device whose sum is wrong.
    """

    axis: int
    devices: int
    seconds: float
    wrong_sums: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every device has the right sum."""
        return not self.wrong_sums


def open_mesh_for_check(mesh_shape: tuple[int, int], backend: str) -> Mesh:
    """Open a mesh with a strategy on both axes, so that tensors can be sharded over both."""
    return open_mesh(mesh_shape, backend=backend, axes=Axes(data=0, tensor=1))


def check_axis(mesh: Mesh, axis: int) -> AxisCheck:
    """Sum known values along an axis by an all-reduce, and check every device's sum.

    Args:
        mesh: mesh from `open_mesh_for_check`.
        axis: 0 for down the rows, 1 for along the columns.
    """
    rows, columns = mesh.shape
    numbers = np.arange(rows * columns, dtype=np.float32).reshape(mesh.shape) % _LARGEST_VALUE + 1
    pieces = Placements(sharded(2), sharded(3))
    values = np.kron(numbers, np.ones((_TILE, _TILE), np.float32))[None, None]
    tensor = upload(mesh, values, dtype=mesh.dtype, layout=mesh.tt.TILE_LAYOUT, placements=pieces)
    started = time.perf_counter()
    summed = all_reduce(mesh, tensor, axis)
    mesh.synchronise()
    seconds = time.perf_counter() - started
    got = download(mesh, summed, pieces).reshape(rows, _TILE, columns, _TILE)
    expected = np.broadcast_to(numbers.sum(axis, keepdims=True), mesh.shape)
    ids = read_device_ids(mesh)
    wrong_sums = tuple(
        f"device {ids[row][column]} at [{row}, {column}] has {_format_range(got[row, :, column])}, expected "
        f"{expected[row, column]:g}"
        for row in range(rows)
        for column in range(columns)
        if not np.array_equal(got[row, :, column], np.full((_TILE, _TILE), expected[row, column]))
    )
    return AxisCheck(axis, mesh.shape[axis], seconds, wrong_sums)


def _format_range(values: npt.NDArray[np.float32]) -> str:
    low, high = values.min(), values.max()
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def read_device_ids(mesh: Mesh) -> list[list[int]]:
    """Return the device ids, row by row of the mesh."""
    ids, columns = mesh.chip_ids, mesh.shape[1]
    return [list(ids[start : start + columns]) for start in range(0, len(ids), columns)]


def draw_mesh(ids: list[list[int]]) -> list[str]:
    """Return the mesh as lines of text: device ids in their positions, and a legend of the axes."""
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
