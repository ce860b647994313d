"""A fake kernel compiler. ttnn's wheel lacks the real one, and a mocked board never executes kernels.

It is a shell script, because that starts fast. Every link step yields the same prepared ELF file, which tt-metal's
loader accepts.
"""

from __future__ import annotations

import struct


def kernel_elf() -> bytes:
    """Return the smallest RV32 ELF that tt-metal's loader accepts: text, empty data segment, one relocation."""
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


_SCRIPT = """#!/bin/sh
# Fake kernel compiler: a link step writes a prepared program, any other step an empty file.
# It uses shell built-ins only, because it is called thousands of times.
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
    *.elf*) printf 'PROGRAM' > "$output" ;;
    *) : > "$output" ;;
esac
exit 0
"""


def compiler_script() -> str:
    """Return the shell script that replaces the compiler."""
    return _SCRIPT.replace("PROGRAM", "".join(f"\\{byte:03o}" for byte in kernel_elf()))
