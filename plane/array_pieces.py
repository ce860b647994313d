"""Flat arrays of a shard in pieces of one chunk, as they travel between shards and aggregator for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from protos import plane_pb2 as pb
from services.errors import Refused
from services.tensors.layout import CHUNK_ELEMENTS

WEIGHTS = "weights"
"""Name of the array of master weights."""
STATE_PREFIX = "state/"
"""Prefix of the names of the update rule's arrays."""
_MAX_NAME_CHARACTERS = 40


class DamagedPiece(Refused):
    """A piece whose checksum does not match; the sender may send it again."""


def make_piece(
    name: str, array: NDArray[Any], start: int, *, offset: int, elements: int, opening: int = 0
) -> pb.ArrayPiece:
    """Return at most `CHUNK_ELEMENTS` elements of an array as a message.

    Args:
        name: name of the array on the wire.
        array: flat array at the sender.
        start: index of the piece's first element in `array`.
        offset: index of the piece's first element in the shard's array.
        elements: length of the shard's array.
        opening: number of the OpenPart that the piece belongs to.
    """
    data = array[start : start + CHUNK_ELEMENTS].tobytes()
    piece = pb.ArrayPiece(
        opening=opening, array=name, dtype=array.dtype.name, elements=elements, offset=offset, data=data
    )
    piece.crc32c = _checksum(piece)
    return piece


def _checksum(piece: pb.ArrayPiece) -> int:
    """Return the CRC-32C of a piece's description and data: bits of either may flip."""
    description = f"{piece.opening} {piece.array} {piece.dtype} {piece.elements} {piece.offset}".encode()
    checksum: int = google_crc32c.extend(google_crc32c.value(description), piece.data)
    return checksum


def describe_place(piece: pb.ArrayPiece) -> str:
    """Return a piece's array and offset for error texts."""
    return f"array {piece.array[:_MAX_NAME_CHARACTERS]!r}, offset {piece.offset}"


def read_piece(piece: pb.ArrayPiece) -> NDArray[Any]:
    """Return a read-only view of a piece's elements.

    Raises:
        DamagedPiece: the checksum does not match.
        Refused: the dtype is unknown, or the data is not a whole number of elements.
    """
    place = describe_place(piece)
    checksum = _checksum(piece)
    if checksum != piece.crc32c:
        raise DamagedPiece(
            f"{place}: {len(piece.data)} bytes with crc32c {checksum:08x}, expected {piece.crc32c:08x}: the "
            "message was damaged"
        )
    if piece.dtype not in ("float32", "int64"):
        raise Refused(f"{place}: dtype {piece.dtype[:_MAX_NAME_CHARACTERS]!r}, expected float32 or int64")
    dtype = np.dtype(piece.dtype)
    if len(piece.data) % dtype.itemsize:
        raise Refused(
            f"{place}: {len(piece.data)} bytes, expected a multiple of {dtype.itemsize} ({piece.dtype})"
        )
    return np.frombuffer(piece.data, dtype)


def write_piece(piece: pb.ArrayPiece, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a piece into the shard's array of its name.

    Raises:
        Refused: the piece is damaged, or the shard has no such array.
    """
    values = read_piece(piece)
    array = arrays.get(piece.array)
    if array is None or (array.dtype, array.size) != (values.dtype, piece.elements):
        known = ", ".join(f"{name} ({each.dtype} [{each.size}])" for name, each in arrays.items())
        raise Refused(
            f"array {piece.array} ({piece.dtype} [{piece.elements}]): this job's optimizer has {known}; resume the "
            "checkpoint with the model and optimizer that wrote it"
        )
    if piece.offset + values.size > array.size:
        raise Refused(f"{describe_place(piece)}: {values.size} elements, but the array has {array.size}")
    array[piece.offset : piece.offset + values.size] = values
