"""Messages between the workers of a row: a piece of an array, or how far an end has received them.

Pieces are written and read without a copy of the payload, as chunks are. Both kinds of message have a checksum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from google.protobuf.message import DecodeError

from native import crc32c
from protos.pipeline_pb2 import ArrayHeader, ArrayKind, LinkState, PassMessage
from protos.tensors_pb2 import SharedPlaces
from services.errors import Refused
from services.pipeline.row_ids import describe_row
from services.pipeline.split import StageRun
from services.printable import printable
from services.protocol.bounds import MessageTooLarge, check_received
from services.protocol.checksums import (
    ChecksumMismatch,
    encode_with_checksum,
    set_checksum,
    verify_checksum,
)
from services.tensors.payload_last import Message, encode_before_payload, split_message
from worker.pipeline.array_plan import KINDS, ArrayPlan

PIECE_BYTES = 2 << 20
"""Largest payload of a message."""

_MAX_JOB_CHARACTERS = 60

Checked = TypeVar("Checked", ArrayHeader, LinkState, SharedPlaces)


class PassRefused(Refused):
    """A message that is damaged, or that is none of this job. The text names the array."""


@dataclass(frozen=True)
class ArrayPiece:
    """A piece of an array.

    Attributes:
        header: what the piece is.
        payload: its bytes; in shared memory, those of the array's place from the piece's first one on.
        is_shared: whether the payload is in memory of the sender.
    """

    header: ArrayHeader
    payload: memoryview
    is_shared: bool = False


@dataclass(frozen=True)
class PieceReference:
    """A piece of an array whose payload is in memory of the sender.

    Attributes:
        header: what the piece is.
        places: the memory, and the place of the array in it.
    """

    header: ArrayHeader
    places: SharedPlaces


Received: TypeAlias = ArrayPiece | LinkState


def encode_piece(header: ArrayHeader, payload: memoryview) -> tuple[bytes, memoryview]:
    """Return a piece as a message, in two parts: what comes before the payload, and the payload.

    Args:
        header: what the piece is; its checksum is set here.
        payload: its bytes.
    """
    header.crc32c = crc32c.value(payload)
    return encode_before_payload(encode_with_checksum(header), payload.nbytes), payload


def encode_reference(header: ArrayHeader, places: SharedPlaces) -> bytes:
    """Return a piece as a message that refers to its payload.

    Args:
        header: what the piece is.
        places: where its array is; neither has a checksum yet.
    """
    message = PassMessage(header=header, shared=places)
    set_checksum(message.header, b"")
    set_checksum(message.shared, message.header.SerializeToString())
    return message.SerializeToString()


def encode_state(state: LinkState) -> bytes:
    """Return a state, which has no checksum yet, as a message."""
    message = PassMessage(state=state)
    set_checksum(message.state, b"")
    return message.SerializeToString()


def decode(message: Message) -> Received | PieceReference:
    """Parse a message in any valid encoding. A piece's payload is a view if it is the last field.

    Raises:
        PassRefused: the message is damaged, or larger than its bounds.
    """
    try:
        parts = split_message(message)
        if parts is not None:
            content, payload = parts
            return _checked_piece(ArrayHeader.FromString(content), content, payload)
        whole = PassMessage.FromString(bytes(message))
    except DecodeError as error:
        raise PassRefused(f"a message of {len(message)} bytes is no PassMessage: {error}") from None
    parts_of = (
        whole.HasField("header"),
        whole.HasField("state"),
        whole.HasField("shared"),
        bool(whole.payload),
    )
    header = whole.header
    match parts_of:
        case (False, True, False, False):
            return _checked(whole.state, whole.state.SerializeToString(), "state of a link")
        case (True, False, True, False):
            before = header.SerializeToString()
            _checked(header, before, "piece of an array")
            places, content = whole.shared, before + whole.shared.SerializeToString()
            return PieceReference(header, _checked(places, content, describe_array(header)))
        case (True, False, False, True):
            return _checked_piece(header, header.SerializeToString(), memoryview(whole.payload))
    raise PassRefused(
        f"a message of {len(message)} bytes, expected a header with its payload or its place, or a state alone"
    )


def _checked_piece(header: ArrayHeader, content: bytes, payload: memoryview) -> ArrayPiece:
    _checked(header, content, "piece of an array")
    checksum = crc32c.value(payload)
    if checksum != header.crc32c:
        raise PassRefused(
            f"{describe_array(header)}: payload damaged: crc32c {checksum:#010x}, expected {header.crc32c:#010x}"
        )
    return ArrayPiece(header, payload)


def _checked(message: Checked, content: bytes, what: str) -> Checked:
    try:
        if not verify_checksum(message, content):
            raise ChecksumMismatch("expected a crc32c")
        check_received(message)
    except ChecksumMismatch as damaged:
        raise PassRefused(f"{what}: damaged: {damaged}") from None
    except MessageTooLarge as error:
        raise PassRefused(f"{what}: {error.fault}") from None
    return message


def check_array(piece: ArrayPiece, plan: ArrayPlan, own: StageRun) -> int:
    """Return the size of the array that a piece belongs to, in bytes.

    Args:
        piece: the piece.
        plan: arrays of the job.
        own: stages of the receiving worker.

    Raises:
        PassRefused: no range here takes such an array.
    """
    header = piece.header
    place = describe_array(header)
    if header.kind not in KINDS:
        raise PassRefused(
            f"{place}: kind {header.kind}, expected one of {', '.join(map(str, sorted(KINDS)))}"
        )
    ranges = len(plan.split.ranges)
    if header.range >= ranges or not own.first <= plan.split.stage_of(header.range) < own.stop:
        raise PassRefused(f"{place}: expected a range of {own} of {ranges} ranges over {plan.split.stages}")
    mismatch = plan.arrays.describe_mismatch(header.dtype)
    if mismatch:
        raise PassRefused(f"{place}: {mismatch}")
    size_bytes = math.prod(header.shape) * plan.arrays.element_bytes
    limit_bytes = plan.limit_bytes(header.kind)
    if not 0 < size_bytes <= limit_bytes:
        raise PassRefused(
            f"{place}: shape {list(header.shape)} of {size_bytes} bytes, expected 1 to {limit_bytes} bytes in this job"
        )
    if piece.payload.nbytes > PIECE_BYTES and not piece.is_shared:
        raise PassRefused(f"{place}: payload of {piece.payload.nbytes} bytes, expected at most {PIECE_BYTES}")
    return size_bytes


def describe_array(header: ArrayHeader) -> str:
    """Return text for people on what an array is; the header is not trusted."""
    known = header.kind in ArrayKind.values()
    kind = ArrayKind.Name(header.kind).lower().replace("_", " ") if known else "array"
    return (
        f"{kind} of micro-batch {header.micro_batch} for range {header.range} (job "
        f"{printable(header.job, _MAX_JOB_CHARACTERS)}, step {header.step}, lease {header.lease}, "
        f"{describe_row(header.row)})"
    )
