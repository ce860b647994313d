"""Opening and closing the emulated mesh, with ttnn's rules: fabric before opening, one mesh at a time."""

from __future__ import annotations

import numpy as np

from mesh.emulator.memory import Memory
from mesh.emulator.parallel import use_threads
from mesh.emulator.tensor import Tensor, check, wrap
from mesh.emulator.types import Arch, FabricConfig, MeshShape

LARGEST_MESH = 1024
"""Chips of the largest mesh that can be opened."""


class MeshDevice:
    """An open mesh of emulated chips. `shape` is [rows, cols]."""

    __slots__ = ("chip", "chips", "fabric", "is_open", "memory", "shape")

    chip: MeshDevice
    """A single chip of the mesh (itself if there is but one): the device of what `get_device_tensors` gives."""

    def __init__(self, shape: MeshShape, fabric: FabricConfig) -> None:
        self.shape = shape
        self.chips = shape[0] * shape[1]
        self.fabric = fabric
        self.is_open = True
        self.memory = Memory()
        self.chip = self if self.chips == 1 else MeshDevice(MeshShape(1, 1), fabric)

    def get_num_devices(self) -> int:
        """Number of chips."""
        return self.chips

    def get_device_ids(self) -> list[int]:
        """Numbers of the chips, row by row."""
        return list(range(self.chips))

    def arch(self) -> Arch:
        """The architecture of the chips."""
        return Arch.EMULATOR

    def check_open(self, op: str) -> None:
        """Raise RuntimeError if the mesh was closed."""
        if not self.is_open:
            raise RuntimeError(f"{op}: the device was closed")

    def __repr__(self) -> str:
        return f"MeshDevice({self.shape[0]}x{self.shape[1]} grid, {self.chips} emulated devices)"


class _Process:
    """What ttnn keeps per process: the fabric setting and the open mesh."""

    fabric = FabricConfig.DISABLED
    mesh: MeshDevice | None = None


def set_fabric_config(config: FabricConfig) -> None:
    """Choose the fabric of the mesh that is opened next. Raises RuntimeError while one is open."""
    if _Process.mesh is not None:
        raise RuntimeError(f"SetFabricConfig({config.name}) is not allowed while devices are still open")
    _Process.fabric = config


def open_mesh_device(mesh_shape: MeshShape, *, trace_region_size: int = 0) -> MeshDevice:
    """Open a mesh. Raises RuntimeError for an empty or too large mesh and while one is open (ttnn crashes then).

    `trace_region_size` is without effect: see `mesh.emulator.trace`.
    """
    if _Process.mesh is not None:
        raise RuntimeError("open_mesh_device: a mesh is open already; close it first")
    if not 0 < mesh_shape[0] * mesh_shape[1] <= LARGEST_MESH:
        raise RuntimeError(f"open_mesh_device: {mesh_shape} has no devices, or more than {LARGEST_MESH}")
    # Chips overflow without a word; the thread that opens the mesh is the one that drives it.
    np.seterr(over="ignore", under="ignore", invalid="ignore", divide="ignore")
    _Process.mesh = MeshDevice(mesh_shape, _Process.fabric)
    return _Process.mesh


def close_mesh_device(mesh_device: MeshDevice) -> None:
    """Close a mesh; its tensors can't be used any more. Closing twice is no error."""
    mesh_device.is_open = mesh_device.chip.is_open = False
    use_threads(1)
    if _Process.mesh is mesh_device:
        _Process.mesh = None


def synchronize_device(device: MeshDevice) -> None:
    """Wait for all work on the mesh: nothing to wait for here."""
    device.check_open("synchronize_device")


def get_device_tensors(tensor: Tensor) -> list[Tensor]:
    """The tensor of each chip, in row-major mesh order."""
    check("get_device_tensors", tensor, on_device=False)
    array, mesh = tensor.array, tensor.mesh
    if mesh is None:
        return [tensor]
    tensors = []
    for row in range(mesh.shape[0]):
        for col in range(mesh.shape[1]):
            chip_row, chip_col = min(row, array.shape[0] - 1), min(col, array.shape[1] - 1)
            chip = array[chip_row : chip_row + 1, chip_col : chip_col + 1]
            tensors.append(
                wrap(chip, tensor.dtype, tensor.layout, mesh.chip, tensor.buffer, on_host=tensor.on_host)
            )
    return tensors
