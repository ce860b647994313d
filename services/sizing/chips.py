"""Memory of the chips that exist, as tt-metal's allocator hands it out, and the cores that compute."""

from __future__ import annotations

from dataclasses import dataclass

_WORMHOLE_SOURCE = "tt-metal: wormhole_b0_80_arch.yaml, 12 banks of 1 GiB"
_BLACKHOLE_SOURCE = "tt-metal: blackhole_140_arch.yaml, banks of 4080 MiB"
_MIB = 1 << 20
_RESERVED_BYTES = 1_048_640
"""Part of each bank that the runtime keeps for itself."""


@dataclass(frozen=True)
class Chip:
    """One chip of a board.

    Attributes:
        name: name of the board.
        banks: number of DRAM banks that tensors are distributed over.
        bank_bytes: bytes of a bank that tensors can use.
        arch: name of the architecture.
        cores: cores of the grid that computes, as ttnn reports it for a described board.
        source: where the figures are published.
    """

    name: str
    banks: int
    bank_bytes: int
    arch: str
    cores: int
    source: str

    @property
    def dram_bytes(self) -> int:
        """Bytes of the chip that tensors can use."""
        return self.banks * self.bank_bytes


def _wormhole(name: str) -> Chip:
    return Chip(name, 12, 1024 * _MIB - _RESERVED_BYTES, "wormhole_b0", 64, _WORMHOLE_SOURCE)


def _blackhole(name: str, banks: int = 8) -> Chip:
    return Chip(name, banks, 4080 * _MIB - _RESERVED_BYTES, "blackhole", 120, _BLACKHOLE_SOURCE)


CHIPS = {
    chip.name: chip
    for chip in (
        _wormhole("n150"),
        _wormhole("n300"),
        _wormhole("t3k"),
        _wormhole("galaxy"),
        _wormhole("wormhole"),
        _blackhole("p100", banks=7),  # one bank is switched off
        _blackhole("p150"),
        _blackhole("p300"),
        _blackhole("blackhole"),
    )
}
"""Chips by the name of their board or architecture. Boards with several chips have this memory on each."""

DEFAULT_CHIP = CHIPS["wormhole"]
"""Chip of a LoudBox, for which sizes are given if no other is named."""
