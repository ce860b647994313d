"""Cluster descriptors of mocked boards: the chips of a host and their links, in tt-metal's format.

tt-metal reads the number of chips, their architecture, which of them have PCIe, and how many ethernet channels
neighbours share. Everything else, such as serial numbers and the order of links, is made up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Link = tuple[tuple[int, int], tuple[int, int]]
"""The two ends of a link, each as (chip, ethernet channel)."""

_TYPE_NUMBERS = {"n150": 0x18, "n300": 0x14, "ubb": 0x35, "p150": 0x41}
"""Product number in the id of a board, by type."""

_N150_DISABLED_ROWS = 0b0001000000
_N300_DISABLED_ROWS = 0b1000000001
"""Bit masks of the disabled rows among a chip's ten rows of cores. A Galaxy chip has none."""
_P150_DISABLED_COLUMNS = 0b11000000
_P150_DISABLED_ETHERNET = 0b100100000
_P150_DISABLED_PCIE = 0b10
"""Bit masks of the disabled columns of cores, ethernet cores and PCIe cores of a P150."""


@dataclass(frozen=True)
class Board:
    """A host's chips.

    Attributes:
        name: name of the board.
        meshes: (rows, columns) of each mesh that the contract opens on it.
        descriptor: function that returns the cluster descriptor.
    """

    name: str
    meshes: tuple[tuple[int, int], ...]
    descriptor: Callable[[], dict[str, Any]]


def _n150() -> dict[str, Any]:
    return _descriptor(
        places=[(0, 0)],
        links=[],
        pcie=[0],
        disabled_rows=_N150_DISABLED_ROWS,
        boards=[("n150", 0, [0])],
        positions=[1],
    )


def _n300() -> dict[str, Any]:
    """Return two linked chips, of which the first has PCIe."""
    links = [((0, 8), (1, 0)), ((0, 9), (1, 1))]
    return _descriptor(
        places=[(0, 0), (1, 0)],
        links=links,
        pcie=[0],
        disabled_rows=_N300_DISABLED_ROWS,
        boards=[("n300", 0, [0, 1])],
        positions=[2, 3],
    )


def _loudbox() -> dict[str, Any]:
    """Return a T3K: four N300 boards of two chips, in four columns and two rows.

    Columns 1 and 2 have the chips with PCIe (0 to 3). Columns 0 and 3 have the second chips of the boards (4 to 7).
    Chip c in column 1 or 2 shares its board with chip c + 4.
    """
    column = (1, 1, 2, 2, 0, 0, 3, 3)
    links: list[Link] = []
    for chip in range(4):
        links += [((chip, near), (chip + 4, far)) for near, far in ((8, 0), (9, 1))]
    for row, channels in ((0, (6, 7)), (1, (0, 1))):
        links += [((row, channel), (row + 2, channel)) for channel in channels]
    for upper, channels in ((0, (14, 15)), (2, (14, 15)), (4, (6, 7)), (6, (6, 7))):
        links += [((upper, channel), (upper + 1, channel)) for channel in channels]
    return _descriptor(
        places=[(column[chip], chip % 2) for chip in range(8)],
        links=links,
        pcie=range(4),
        disabled_rows=_N300_DISABLED_ROWS,
        boards=[("n300", board, [board + 4, board]) for board in range(4)],
        positions=[2 + chip // 4 for chip in range(8)],
    )


def _galaxy() -> dict[str, Any]:
    """Return a 6u Galaxy: 8 rows by 4 columns, chip = 4 * row + column, every chip with PCIe.

    It has four trays of 4 by 2 chips. On a tray, positions 1 to 4 run down the outer column and 5 to 8 down the inner
    one. Both start at the outer edge of the machine. Neighbours share four channels. Links within a tray use other
    channel numbers than links between trays. Rows and columns are not closed to rings.
    """
    rows, cols = 8, 4
    position, bus = [], []
    for row in range(rows):
        for col in range(cols):
            lower, right = row >= rows // 2, col >= cols // 2
            down = rows - 1 - row if lower else row
            inner = col in (1, 2)
            position.append(1 + down + 4 * inner)
            bus.append({(0, 0): 0xC0, (1, 0): 0x40, (0, 1): 0x00, (1, 1): 0x80}[lower, right])
    links: list[Link] = []
    for row in range(rows):
        for col in range(cols):
            chip = cols * row + col
            if row + 1 < rows:
                # Away from the edge, a chip uses channels 8 to 11 and the next chip of the tray 4 to 7.
                near, far = (8, 4) if row < 3 else (8, 8) if row == 3 else (4, 8)
                links += [((chip, near + i), (chip + cols, far + i)) for i in range(4)]
            if col + 1 < cols:
                near, far = ((12, 0), (12, 12), (0, 12))[col]
                links += [((chip, near + i), (chip + 1, far + i)) for i in range(4)]
    chips = rows * cols
    described = _descriptor(
        places=[],
        links=links,
        pcie=range(chips),
        disabled_rows=0,
        boards=[("ubb", 0, list(range(chips)))],
        positions=position,
    )
    described["chip_to_bus_id"] = {chip: f"0x{bus[chip] + position[chip]:04x}" for chip in range(chips)}
    described["chip_unique_ids"] = {
        chip: (position[chip] << 56) | (0x62000000 + bus[chip]) for chip in range(chips)
    }
    return described


def _p150_loudbox() -> dict[str, Any]:
    """Return eight P150 boards in two rows and four columns, chip = 4 * row + column; neighbours share two channels."""
    links: list[Link] = []
    for chip in range(8):
        if chip % 4 < 3:
            links += [((chip, near), (chip + 1, far)) for near, far in ((9, 4), (11, 6))]
        if chip < 4:
            links += [((chip, channel), (chip + 4, channel)) for channel in (5, 7)]
    described = _descriptor(
        places=[],
        links=links,
        pcie=range(8),
        disabled_rows=_P150_DISABLED_COLUMNS,
        boards=[("p150", board, [board]) for board in range(8)],
        positions=[0] * 8,
        arch="blackhole",
    )
    for disabled in described["harvesting"].values():
        disabled["eth_harvesting_mask"] = _P150_DISABLED_ETHERNET
        disabled["pcie_harvesting_mask"] = _P150_DISABLED_PCIE
    return described


BOARDS = {
    board.name: board
    for board in (
        Board("n150", ((1, 1),), _n150),
        Board("n300", ((1, 2),), _n300),
        Board("loudbox", ((1, 8), (8, 1), (2, 4)), _loudbox),
        Board("galaxy", ((8, 4),), _galaxy),
        Board("p150_loudbox", (), _p150_loudbox),
    )
}


def _descriptor(
    *,
    places: Sequence[tuple[int, int]],
    links: Sequence[Link],
    pcie: Sequence[int],
    disabled_rows: int,
    boards: Sequence[tuple[str, int, list[int]]],
    positions: Sequence[int],
    arch: str = "wormhole_b0",
) -> dict[str, Any]:
    """Return a cluster descriptor.

    Args:
        places: column and row of each chip; empty where tt-metal derives them.
        links: links between chips.
        pcie: chips that the host reaches directly.
        disabled_rows: bit mask of the disabled rows of cores, or columns on Blackhole.
        boards: type, number and chips of each board.
        positions: position of each chip on its board.
        arch: architecture of the chips.
    """
    chips = len(positions)
    board_of = {chip: number for _, number, members in boards for chip in members}
    serial = 0x61000000
    return {
        "arch": dict.fromkeys(range(chips), arch),
        "chips": {chip: [column, row, 0, 0] for chip, (column, row) in enumerate(places)},
        "chip_unique_ids": {
            chip: (positions[chip] << 32) | (serial + board_of[chip]) for chip in range(chips)
        },
        "ethernet_connections": [
            [{"chip": chip, "chan": channel} for chip, channel in ends] for ends in links
        ],
        "ethernet_connections_to_remote_devices": [],
        "chips_with_mmio": [{chip: chip} for chip in pcie],
        "harvesting": {
            chip: {
                "noc_translation": True,
                "harvest_mask": disabled_rows,
                "dram_harvesting_mask": 0,
                "eth_harvesting_mask": 0,
                "pcie_harvesting_mask": 0,
            }
            for chip in range(chips)
        },
        "boards": [
            [
                {"board_id": ((0x0100000 | _TYPE_NUMBERS[kind]) << 36) | (1 << 32) | (serial + number)},
                {"board_type": kind},
                {"chips": members},
            ]
            for kind, number, members in boards
        ],
    }
