"""How much of a chip's memory its tensors take, counted as a Wormhole chip would: whole tiles, dealt out to banks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh.emulator.device import MeshDevice

_BANKS = 12
_BANK_BYTES = 1_072_693_184
_TILE = 32
_ALIGNMENT_BYTES = 32


class BufferType(Enum):
    """Which memory of a chip. The emulator's tensors are all in DRAM."""

    DRAM = 0
    L1 = 1


class Memory:
    """What the live tensors of a mesh take of each chip's DRAM, the most they took, and all that were ever made took.

    `bank_bytes` is of the fullest bank. Counted on the thread that drives the mesh.
    """

    __slots__ = ("allocated_bank_bytes", "bank_bytes", "peak_bank_bytes")

    def __init__(self) -> None:
        self.bank_bytes = 0
        self.peak_bank_bytes = 0
        self.allocated_bank_bytes = 0

    @property
    def live_bytes(self) -> int:
        """Bytes taken of one chip."""
        return self.bank_bytes * _BANKS

    @property
    def peak_bytes(self) -> int:
        """The most bytes taken of one chip since `reset_peak`."""
        return self.peak_bank_bytes * _BANKS

    @property
    def allocated_bytes(self) -> int:
        """Bytes taken of one chip by all tensors since the mesh was opened, live or not."""
        return self.allocated_bank_bytes * _BANKS

    def reset_peak(self) -> None:
        """Look for the peak from now on."""
        self.peak_bank_bytes = self.bank_bytes


class Buffer:
    """What tensors over the same elements share: whether they are allocated, and the memory they take."""

    __slots__ = ("_bank_bytes", "_memory", "allocated")

    def __init__(self, memory: Memory | None = None, bank_bytes: int = 0) -> None:
        self.allocated = True
        self._memory = memory
        self._bank_bytes = bank_bytes
        if memory is not None:
            memory.bank_bytes += bank_bytes
            memory.allocated_bank_bytes += bank_bytes
            memory.peak_bank_bytes = max(memory.peak_bank_bytes, memory.bank_bytes)

    def free(self) -> None:
        """Give the memory back, whoever looks at the buffer still."""
        self.allocated = False
        if self._memory is not None:
            self._memory.bank_bytes -= self._bank_bytes
            self._memory = None

    def __del__(self) -> None:
        self.free()


@lru_cache(maxsize=4096)
def bank_bytes(shape: tuple[int, ...], element_bytes: int, tiled: bool) -> int:
    """Bytes that a tensor of `shape` on a chip takes of the bank that gets most of its pages (tiles, else rows)."""
    *outer, height, width = (1, 1, *shape)[-max(2, len(shape)) :]
    if tiled:
        pages = math.prod(outer) * -(-height // _TILE) * -(-width // _TILE)
        page_bytes = _TILE * _TILE * element_bytes
    else:
        pages = math.prod(outer) * height
        page_bytes = -(-width * element_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return -(-pages // _BANKS) * page_bytes


@dataclass(frozen=True)
class MemoryView:
    """A memory of each chip as its allocator sees it; bytes are of one bank."""

    num_banks: int
    total_bytes_per_bank: int
    total_bytes_allocated_per_bank: int
    total_bytes_free_per_bank: int
    largest_contiguous_bytes_free_per_bank: int


def get_memory_view(device: MeshDevice, buffer_type: BufferType) -> MemoryView:
    """What is taken and free of each chip's memory, which is told as a Wormhole's; never fragmented here.

    Raises RuntimeError for other memories than DRAM, which the emulator's tensors don't use.
    """
    device.check_open("get_memory_view")
    if buffer_type is not BufferType.DRAM:
        raise RuntimeError(f"get_memory_view: {buffer_type}, the emulator has BufferType.DRAM only")
    taken = device.memory.bank_bytes
    free = _BANK_BYTES - taken
    return MemoryView(_BANKS, _BANK_BYTES, taken, free, free)
