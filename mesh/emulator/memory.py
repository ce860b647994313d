"""Counts the DRAM that tensors take of a chip, as a Wormhole allocates it: whole tiles, distributed over banks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

_BANKS = 12
_BANK_BYTES = 1_072_693_184
_TILE = 32
_ALIGNMENT_BYTES = 32


class BufferType(Enum):
    """Memory of a chip. All tensors of the emulator are in DRAM."""

    DRAM = 0
    L1 = 1


@dataclass(frozen=True)
class MemoryView:
    """Allocator figures of one memory of each chip. Bytes are per bank."""

    num_banks: int
    total_bytes_per_bank: int
    total_bytes_allocated_per_bank: int
    total_bytes_free_per_bank: int
    largest_contiguous_bytes_free_per_bank: int


class Memory:
    """Counter of the DRAM that a mesh's tensors take on each chip. Used only on the thread that drives the mesh.

    Attributes:
        allocated_bank_bytes: sum of all allocations since the mesh was opened, per bank.
        bank_bytes: bytes allocated now in the fullest bank, of the fullest chip if there are submeshes.
        peak_bank_bytes: largest `bank_bytes` since `reset_peak`.
    """

    __slots__ = (
        "_own_bank_bytes",
        "_parts",
        "_whole",
        "allocated_bank_bytes",
        "bank_bytes",
        "peak_bank_bytes",
    )

    def __init__(self, whole: Memory | None = None) -> None:
        self.bank_bytes = 0
        self.peak_bank_bytes = 0
        self.allocated_bank_bytes = 0
        self._own_bank_bytes = 0  # without those of submeshes
        self._parts: list[Memory] = []
        self._whole = whole

    def split(self, parts: int) -> list[Memory]:
        """Return the memory of each submesh, whose allocations count here too."""
        self._parts = [Memory(self) for _ in range(parts)]
        return self._parts

    def allocate(self, bank_bytes: int) -> None:
        """Count an allocation, or with a negative number that it is freed.

        Args:
            bank_bytes: its bytes in the fullest bank.
        """
        self._own_bank_bytes += bank_bytes
        self._update()

    @property
    def live_bytes(self) -> int:
        """Bytes allocated now on one chip."""
        return self.bank_bytes * _BANKS

    @property
    def peak_bytes(self) -> int:
        """Largest number of bytes allocated at once on one chip since `reset_peak`."""
        return self.peak_bank_bytes * _BANKS

    @property
    def allocated_bytes(self) -> int:
        """Sum of all allocations on one chip since the mesh was opened, in bytes."""
        return self.allocated_bank_bytes * _BANKS

    def note_scratch(self, bank_bytes: int) -> None:
        """Count memory that an op of ttnn takes and frees again before it returns.

        Args:
            bank_bytes: its bytes in the fullest bank.
        """
        self.allocate(bank_bytes)
        self.allocate(-bank_bytes)

    def reset_peak(self) -> None:
        """Restart the search for the peak at the current allocation."""
        self.peak_bank_bytes = self.bank_bytes

    def _update(self) -> None:
        before = self.bank_bytes
        self.bank_bytes = self._own_bank_bytes
        if self._parts:
            self.bank_bytes += max(part.bank_bytes for part in self._parts)
        self.allocated_bank_bytes += max(0, self.bank_bytes - before)
        self.peak_bank_bytes = max(self.peak_bank_bytes, self.bank_bytes)
        if self._whole is not None:
            self._whole._update()

    def describe(self) -> MemoryView:
        """Return the figures that ttnn's allocator reports, with the sizes of a Wormhole and no fragmentation."""
        free = _BANK_BYTES - self.bank_bytes
        return MemoryView(_BANKS, _BANK_BYTES, self.bank_bytes, free, free)


class Buffer:
    """Memory shared by tensors over the same elements.

    Attributes:
        allocated: whether it is allocated.
        bank_bytes: its bytes in the fullest bank; 0 on the host.
    """

    __slots__ = ("_memory", "allocated", "bank_bytes")

    def __init__(self, memory: Memory | None = None, bank_bytes: int = 0) -> None:
        self.allocated = True
        self._memory = memory
        self.bank_bytes = bank_bytes
        if memory is not None:
            memory.allocate(bank_bytes)

    def free(self) -> None:
        """Free the memory, even if tensors still use the buffer."""
        self.allocated = False
        if self._memory is not None:
            self._memory.allocate(-self.bank_bytes)
            self._memory = None

    def __del__(self) -> None:
        self.free()


@lru_cache(maxsize=4096)
def count_bank_bytes(shape: tuple[int, ...], element_bytes: int, tiled: bool) -> int:
    """Return the bytes that a tensor takes in the bank with most of its pages.

    A page is a tile in tile layout, else a row. `shape` is the shape on a chip.
    """
    *outer, height, width = (1, 1, *shape)[-max(2, len(shape)) :]
    if tiled:
        pages = math.prod(outer) * -(-height // _TILE) * -(-width // _TILE)
        page_bytes = _TILE * _TILE * element_bytes
    else:
        pages = math.prod(outer) * height
        page_bytes = -(-width * element_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return -(-pages // _BANKS) * page_bytes
