"""Binary files of token ids: which of their bytes are ids, and of what type.

| file | ids |
| --- | --- |
| `.npy` | one-dimensional, uint16, uint32, int32 or int64, as its header says |
| `.bin` of llm.c | uint16 or uint32, as its header says |
| other `.bin` | no header: uint16 or uint32 if the name ends in `.u16.bin` or `.u32.bin`, else uint16, as of nanoGPT |
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from services.corpora.sidecar import ITEM_BYTES, TOKEN_FILE_BYTES, Dtype
from services.errors import Refused
from services.printable import one_line

SUFFIXES = (".bin", ".npy")

_HEAD_BYTES = 4096
_NPY_MAGIC = b"\x93NUMPY"
_NPY_HEADER = re.compile(
    r"\{'descr': '([^']{1,20})', 'fortran_order': (?:True|False), 'shape': \(([\d, ]{0,60})\),? ?\}\s*"
)
_NPY_ALIGNMENT_BYTES = 16
_NPY_DTYPES: dict[str, Dtype] = {"<u2": "uint16", "<u4": "uint32", "<i4": "int32", "<i8": "int64"}
_NAMED_DTYPES: dict[str, Dtype] = {".u16": "uint16", ".u32": "uint32"}
"""Types by the suffix before `.bin`, for files without a header."""
_LLM_C_HEADERS: dict[tuple[int, int], Dtype] = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
"""Types of the ids by the first two words of llm.c's headers: its GPT-2 and Llama 3 files."""
_LLM_C_HEADER_BYTES = 1024
_OTHERS = {
    b"PK\x03\x04": "a zip archive or a PyTorch file",
    b"\x1f\x8b\x08\x00": "compressed by gzip",
    b"\x1f\x8b\x08\x08": "compressed by gzip",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"MMIDIDX": "an index of Megatron",
    b"PAR1": "a Parquet file",
    b"\x89HDF": "an HDF5 file",
}
_MOST_HIGH_HALF = 3
"""Largest upper half of a 32-bit id, in vocabularies of up to 262,144 ids."""


@dataclass(frozen=True)
class BinaryFormat:
    """Place and type of the ids in a file.

    Attributes:
        dtype: name of the type, little-endian.
        offset_bytes: size of the header before them.
        is_guessed: whether nothing in the file or its name says the type.
    """

    dtype: Dtype
    offset_bytes: int = 0
    is_guessed: bool = False


def read_format(file: BinaryIO, path: Path, size_bytes: int, place: str) -> BinaryFormat:
    """Return the format of a binary file of ids.

    Args:
        file: the file, at its start.
        path: its path, whose suffixes count.
        size_bytes: its size.
        place: the file, for errors.

    Raises:
        Refused: it is a file of another kind, is cut off, has no ids, or is larger than `TOKEN_FILE_BYTES`.
    """
    head = file.read(_HEAD_BYTES)
    if size_bytes > TOKEN_FILE_BYTES:
        raise Refused(f"{place}: {size_bytes} bytes, expected at most {TOKEN_FILE_BYTES}; split it")
    found, count = _parse_head(head, path, place)
    item_bytes = ITEM_BYTES[found.dtype]
    data_bytes = size_bytes - found.offset_bytes
    if count is not None and data_bytes != count * item_bytes:
        raise Refused(
            f"{place}: {size_bytes} bytes, expected {found.offset_bytes + count * item_bytes} for the {count} ids of "
            "its header; copy it again"
        )
    if data_bytes % item_bytes:
        raise Refused(
            f"{place}: {data_bytes} bytes of ids, expected a multiple of {item_bytes} for {found.dtype}; copy it "
            "again, or say the type by a name that ends in .u16.bin or .u32.bin"
        )
    if not data_bytes:
        raise Refused(f"{place}: has no ids; give a file that has some")
    return found


def refuse_wider_ids(ids: npt.NDArray[np.uint16], place: str) -> None:
    """Check that 16-bit ids of a guessed type are no halves of wider ones: then every second one would be tiny.

    Args:
        ids: first ids of the file.
        place: the file, for the error.

    Raises:
        Refused: they look like 32-bit ids.
    """
    if ids.size > 1 and ids[1::2].max() <= _MOST_HIGH_HALF < ids[::2].max():
        raise Refused(
            f"{place}: looks like ids of 32 bits: as uint16, every second id is at most {_MOST_HIGH_HALF}; "
            "let its name end in .u32.bin, or in .u16.bin if they are of 16 bits"
        )


def _parse_head(head: bytes, path: Path, place: str) -> tuple[BinaryFormat, int | None]:
    """Return the format, and the number of ids if a header says it (Refused)."""
    if path.suffix.lower() == ".npy":
        return parse_npy_header(head, place)
    named = _NAMED_DTYPES.get(Path(path.stem).suffix.lower())
    if named is not None:
        return BinaryFormat(named), None
    if head.startswith(_NPY_MAGIC):
        raise Refused(f"{place}: is a numpy file, expected a headerless .bin; let its name end in .npy")
    for magic, kind in _OTHERS.items():
        if head.startswith(magic):
            raise Refused(f"{place}: is {kind}, expected token ids of 16 or 32 bits; correct the path")
    if len(head) >= _LLM_C_HEADER_BYTES:
        magic_number, version, count = struct.unpack_from("<3i", head)
        dtype = _LLM_C_HEADERS.get((magic_number, version))
        if dtype is not None:
            return BinaryFormat(dtype, _LLM_C_HEADER_BYTES), count
    return BinaryFormat("uint16", is_guessed=True), None


def parse_npy_header(head: bytes, place: str) -> tuple[BinaryFormat, int]:
    """Return the format of a `.npy` file and its number of ids.

    The header is matched, not evaluated: `numpy.lib.format` reads a length of up to 4 GB and evaluates a literal.

    Args:
        head: first bytes of the file, at least 4096 if it has them.
        place: the file, for errors.

    Raises:
        Refused: it is no such file, or holds no one-dimensional array of ids.
    """
    if not head.startswith(_NPY_MAGIC) or len(head) < 12 or head[6] not in (1, 2):
        raise Refused(f"{place}: is no .npy file, expected one as numpy.save writes it; correct the path")
    length_bytes = 2 if head[6] == 1 else 4
    start = 8 + length_bytes
    offset_bytes = start + int.from_bytes(head[8:start], "little")
    text = head[start:offset_bytes].decode("latin-1")
    match = _NPY_HEADER.fullmatch(text)
    if match is None or offset_bytes > len(head) or offset_bytes % _NPY_ALIGNMENT_BYTES:
        raise Refused(
            f"{place}: its header is no array's ({one_line(text, 60)!r}), expected one as numpy.save writes it; "
            "save it again"
        )
    dtype = _NPY_DTYPES.get(match[1])
    if dtype is None:
        raise Refused(
            f"{place}: an array of {match[1]}, expected one of {', '.join(_NPY_DTYPES)}; save ids.astype('<u4')"
        )
    sizes = [part.strip() for part in match[2].split(",") if part.strip()]
    if len(sizes) != 1 or not sizes[0].isdigit():
        raise Refused(
            f"{place}: an array of shape ({one_line(match[2])}), expected one dimension; save ids.ravel()"
        )
    return BinaryFormat(dtype, offset_bytes), int(sizes[0])
