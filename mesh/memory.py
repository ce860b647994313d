"""What is taken and free of the chips' memory."""

from __future__ import annotations

from dataclasses import dataclass

from mesh.device import Mesh


@dataclass(frozen=True)
class ChipMemory:
    """Bytes of each chip's DRAM, as its allocator sees them."""

    total_bytes: int
    allocated_bytes: int


def chip_memory(mesh: Mesh) -> ChipMemory:
    """The DRAM of one chip; all chips of a mesh allocate alike."""
    view = mesh.tt.get_memory_view(mesh.handle, mesh.tt.BufferType.DRAM)
    banks = view.num_banks
    return ChipMemory(banks * view.total_bytes_per_bank, banks * view.total_bytes_allocated_per_bank)
