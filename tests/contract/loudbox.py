"""A LoudBox that is only described: the real ttnn, its host side whole, with eight chips that nobody has.

tt-metal opens a cluster that a descriptor describes, checks every call, allocates, builds and caches programs, and
executes nothing: what is read back is zeros. The compiler for the chips' kernels isn't in the wheel; since nothing
runs them, a shell script that copies one prepared ELF stands in for it, in a shadow of the runtime folder.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "loudbox"
"""Kernel cache and shadow runtime, kept between runs: a cold cache costs seconds."""

CHIPS = 8
_INNER_LINKS = ((8, 0), (9, 1))
"""Ethernet channels between the two chips of a board: of the one with PCIe, of the other."""


def missing() -> str | None:
    """Why there can be no LoudBox here, None if there can."""
    if find_spec("ttnn") is None:
        return f"ttnn has no wheel for Python {sys.version.split()[0]} here (CPython 3.10 and 3.12, x86-64 Linux)"
    return None


def cluster_descriptor() -> dict[str, object]:
    """A T3K: four N300 boards of two chips, four columns by two rows.

    Columns 1 and 2 have PCIe (chips 0 to 3), columns 0 and 3 their boards' other chips (4 to 7). Chip c of column 1
    or 2 shares its board with chip c + 4.
    """
    column = {0: 1, 1: 1, 2: 2, 3: 2, 4: 0, 5: 0, 6: 3, 7: 3}
    links: list[tuple[tuple[int, int], tuple[int, int]]] = []
    for chip in range(4):
        links += [((chip, near), (chip + 4, far)) for near, far in _INNER_LINKS]
    for row, channels in ((0, (6, 7)), (1, (0, 1))):
        links += [((row, channel), (row + 2, channel)) for channel in channels]
    for upper, channels in ((0, (14, 15)), (2, (14, 15)), (4, (6, 7)), (6, (6, 7))):
        links += [((upper, channel), (upper + 1, channel)) for channel in channels]
    serials = [0x61000000 + board for board in range(4)]
    return {
        "arch": dict.fromkeys(range(CHIPS), "wormhole_b0"),
        "chips": {chip: [column[chip], chip % 2, 0, 0] for chip in range(CHIPS)},
        "chip_unique_ids": {chip: ((2 + chip // 4) << 32) | serials[chip % 4] for chip in range(CHIPS)},
        "ethernet_connections": [
            [{"chip": chip, "chan": channel} for chip, channel in ends] for ends in links
        ],
        "ethernet_connections_to_remote_devices": [],
        "chips_with_mmio": [{chip: chip} for chip in range(4)],
        "harvesting": {
            chip: {
                "noc_translation": True,
                "harvest_mask": 0b1000000001,  # two of ten rows are off on an N300
                "dram_harvesting_mask": 0,
                "eth_harvesting_mask": 0,
                "pcie_harvesting_mask": 0,
            }
            for chip in range(CHIPS)
        },
        "boards": [
            [
                {"board_id": (0x0100014 << 36) | (1 << 32) | serials[board]},
                {"board_type": "n300"},
                {"chips": [board + 4, board]},
            ]
            for board in range(4)
        ],
    }


def kernel_elf() -> bytes:
    """The least RV32 program that tt-metal's loader takes: one text and one empty data segment, one relocation."""
    text_address, data_address = 0x4000, 0xFFB00000
    header_size, segment_size, section_size = 52, 32, 40
    text = struct.pack("<I", 0x00008067) * 4  # ret
    relocation = struct.pack("<IIi", text_address, 0, 0)
    symbols, strings = bytes(16), bytes(4)
    names = b"\0.text\0.data\0.rela.text\0.symtab\0.strtab\0.shstrtab\0"
    text_offset = (header_size + 2 * segment_size + 15) & ~15
    offsets = [text_offset]
    for part in (text, relocation, symbols, strings):
        offsets.append(offsets[-1] + len(part))
    _, relocation_offset, symbols_offset, strings_offset, names_offset = offsets
    sections_offset = (names_offset + len(names) + 3) & ~3

    def section(name: str, kind: int, flags: int, address: int, offset: int, size: int, *rest: int) -> bytes:
        place = names.index(b"\0" + name.encode() + b"\0") + 1 if name else 0
        return struct.pack("<10I", place, kind, flags, address, offset, size, *rest)

    sections = (
        bytes(section_size)
        + section(".text", 1, 6, text_address, text_offset, len(text), 0, 0, 4, 0)
        + section(".data", 1, 3, data_address, relocation_offset, 0, 0, 0, 4, 0)
        + section(".rela.text", 4, 0x40, 0, relocation_offset, len(relocation), 4, 1, 4, 12)
        + section(".symtab", 2, 0, 0, symbols_offset, len(symbols), 5, 1, 4, 16)
        + section(".strtab", 3, 0, 0, strings_offset, len(strings), 0, 0, 1, 0)
        + section(".shstrtab", 3, 0, 0, names_offset, len(names), 0, 0, 1, 0)
    )
    count = len(sections) // section_size
    header = b"\x7fELF\x01\x01\x01" + bytes(9)
    header += struct.pack("<HHIIIIIHHHHHH", 2, 243, 1, text_address, header_size, sections_offset, 0,
                          header_size, segment_size, 2, section_size, count, count - 1)  # fmt: skip
    load = text_address + len(text)
    segments = struct.pack("<8I", 1, text_offset, text_address, text_address, len(text), len(text), 5, 4)
    segments += struct.pack("<8I", 1, relocation_offset, data_address, load, 0, 0, 6, 4)
    body = (header + segments).ljust(text_offset, b"\0") + text + relocation + symbols + strings + names
    return body.ljust(sections_offset, b"\0") + sections


_COMPILER = """#!/bin/sh
# Stands in for the kernel compiler: every link step gives the same prepared program, anything else an empty file.
while [ $# -gt 0 ]; do
    case "$1" in
        --version) echo "riscv-tt-elf-g++ (stand-in) 15.1.0"; exit 0 ;;
        -o) output=$2; shift ;;
        -MF) dependencies=$2; shift ;;
    esac
    shift
done
[ -z "$dependencies" ] || echo "$output:" > "$dependencies"
case "${output##*/}" in
    "") ;;
    *.elf*) cp "${0%/*}/kernel.elf" "$output" ;;
    *) : > "$output" ;;
esac
exit 0
"""


def prepare(folder: Path = BUILD) -> dict[str, str]:
    """Make what the mocked LoudBox needs in `folder`; the environment that a process needs before importing ttnn."""
    spec = find_spec("ttnn")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = Path(next(iter(spec.submodule_search_locations)))
    runtime = folder / "root"
    compiler = runtime / "runtime" / "sfpi" / "compiler" / "bin"
    compiler.mkdir(parents=True, exist_ok=True)
    (compiler / "kernel.elf").write_bytes(kernel_elf())
    (compiler / "riscv-tt-elf-g++").write_text(_COMPILER)
    (compiler / "riscv-tt-elf-g++").chmod(0o755)
    links = {runtime / entry.name: entry for entry in package.iterdir() if entry.name != "runtime"}
    links[runtime / "runtime" / "hw"] = package / "runtime" / "hw"
    for link, target in links.items():
        if link.is_symlink() and link.readlink() == target:
            continue
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    descriptor = folder / "cluster.yaml"
    descriptor.write_text(yaml.safe_dump(cluster_descriptor()))
    return {
        "TT_METAL_RUNTIME_ROOT": str(runtime),
        "TT_METAL_MOCK_CLUSTER_DESC_PATH": str(descriptor),
        "TT_METAL_SLOW_DISPATCH_MODE": "1",
        "TT_METAL_LOGGER_LEVEL": "off",
        "LOGURU_LEVEL": "INFO",
        "TT_METAL_CACHE": str(folder / "cache"),
        "TT_METAL_LOGS_PATH": str(folder),
    }


def run_on_loudbox(*arguments: str, timeout_seconds: float = 240) -> subprocess.CompletedProcess[str]:
    """Run this Python with `arguments` in a process of its own, from the root of the repository, on the LoudBox.

    One at a time: processes would fill the kernel cache over each other.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TT_")}
        paths = [str(ROOT), str(Path(__file__).parent)]
        return subprocess.run(
            [sys.executable, *arguments],
            env={**environment, **prepare(), "PYTHONPATH": os.pathsep.join(paths)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
