"""Opens and closes the emulated mesh, with ttnn's rules: set the fabric before opening, one mesh at a time."""

from __future__ import annotations

import numpy as np

from mesh.emulator.memory import BufferType, Memory, MemoryView
from mesh.emulator.parallel import use_threads
from mesh.emulator.types import Arch, FabricConfig, MeshShape

MAX_CHIPS = 1024
"""Limit on the number of chips of a mesh."""


class MeshDevice:
    """An open mesh of emulated chips, or a submesh of one.

    Attributes:
        chip: mesh of a single chip, the device of tensors from `get_device_tensors`. A mesh of one chip is its own.
        chips: number of chips.
        fabric: routing between chips that was set before opening.
        is_open: whether the mesh is open.
        memory: counter of allocated memory.
        shape: [rows, columns].
    """

    __slots__ = ("_submeshes", "chip", "chips", "fabric", "is_open", "memory", "shape")

    chip: MeshDevice

    def __init__(self, shape: MeshShape, fabric: FabricConfig, memory: Memory | None = None) -> None:
        self._submeshes: list[MeshDevice] = []
        self.shape = shape
        self.chips = shape[0] * shape[1]
        self.fabric = fabric
        self.is_open = True
        self.memory = Memory() if memory is None else memory
        self.chip = self if self.chips == 1 else MeshDevice(MeshShape(1, 1), fabric)

    def get_num_devices(self) -> int:
        """Return the number of chips."""
        return self.chips

    def get_device_ids(self) -> list[int]:
        """Return the ids of the chips, row by row."""
        return list(range(self.chips))

    def create_submeshes(self, submesh_shape: MeshShape) -> list[MeshDevice]:
        """Return submeshes of one shape that share out the chips, row by row.

        Raises RuntimeError if the mesh is no multiple of the shape, or has submeshes.
        """
        self.check_open("create_submeshes")
        rows, columns = submesh_shape
        if self._submeshes or self.shape[0] % rows or self.shape[1] % columns:
            raise RuntimeError(
                f"create_submeshes: {submesh_shape} of {self!r}, expected a shape that divides a mesh not divided yet"
            )
        count = self.chips // (rows * columns)
        self._submeshes = [
            MeshDevice(submesh_shape, self.fabric, memory) for memory in self.memory.split(count)
        ]
        return list(self._submeshes)

    def get_submeshes(self) -> list[MeshDevice]:
        """Return the submeshes that were created."""
        return list(self._submeshes)

    def close(self) -> None:
        """Make the tensors of the mesh and of its submeshes unusable."""
        for submesh in self._submeshes:
            submesh.close()
        self.is_open = self.chip.is_open = False

    def arch(self) -> Arch:
        """Return the architecture of the chips."""
        return Arch.EMULATOR

    def check_open(self, op: str) -> None:
        """Raise RuntimeError if the mesh was closed."""
        if not self.is_open:
            raise RuntimeError(f"{op}: the device was closed")

    def __repr__(self) -> str:
        return f"MeshDevice({self.shape[0]}x{self.shape[1]} grid, {self.chips} emulated devices)"


class _Process:
    """State that ttnn has once per process: the fabric setting and the open mesh."""

    fabric = FabricConfig.DISABLED
    mesh: MeshDevice | None = None


def set_fabric_config(config: FabricConfig) -> None:
    """Set the fabric of the next mesh. Raises RuntimeError while a mesh is open."""
    if _Process.mesh is not None:
        raise RuntimeError(f"SetFabricConfig({config.name}) is not allowed while devices are still open")
    _Process.fabric = config


def open_mesh_device(mesh_shape: MeshShape, *, trace_region_size: int = 0) -> MeshDevice:
    """Open a mesh. `trace_region_size` has no effect, because traces are refused (`mesh.emulator.trace`).

    Raises RuntimeError for a mesh without chips or with more than `MAX_CHIPS`, and while a mesh is open. A second
    open mesh crashes ttnn.
    """
    if _Process.mesh is not None:
        raise RuntimeError("open_mesh_device: a mesh is open already; close it first")
    if not 0 < mesh_shape[0] * mesh_shape[1] <= MAX_CHIPS:
        raise RuntimeError(f"open_mesh_device: {mesh_shape}, expected 1 to {MAX_CHIPS} devices")
    # Chips overflow silently, so numpy does too. The thread that opens the mesh also drives it.
    np.seterr(over="ignore", under="ignore", invalid="ignore", divide="ignore")
    _Process.mesh = MeshDevice(mesh_shape, _Process.fabric)
    return _Process.mesh


def close_mesh_device(mesh_device: MeshDevice) -> None:
    """Close a mesh and make its tensors unusable. Closing twice is allowed."""
    mesh_device.close()
    if _Process.mesh is mesh_device:
        use_threads(1)
        _Process.mesh = None


def synchronize_device(device: MeshDevice) -> None:
    """Return at once: the emulator computes synchronously. Raises RuntimeError for a closed mesh."""
    device.check_open("synchronize_device")


def get_memory_view(device: MeshDevice, buffer_type: BufferType) -> MemoryView:
    """Return the allocator's figures for each chip.

    Raises RuntimeError for a closed mesh, and for memories other than DRAM, which the emulator's tensors don't use.
    """
    device.check_open("get_memory_view")
    if buffer_type is not BufferType.DRAM:
        raise RuntimeError(f"get_memory_view: {buffer_type}, expected BufferType.DRAM only")
    return device.memory.describe()
