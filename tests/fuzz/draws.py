"""Choices drawn from a fuzzer's bytes: numbers, well-formed messages of any type, streams of messages.

A change of a byte changes one choice. Once the bytes are used up, every choice is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import google_crc32c
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

MOST_MESSAGES = 24
"""Messages of a stream; later bytes are not used."""
_RAW, _SEALED = 0, 1
_CHECKSUM = "own_crc32c"
_DEEPEST = 5
_MANY = 300
"""Times that the elements of a list are repeated that is to outgrow its bound."""
_NUMBERS = (0, 1, 2, 3, 5, 64, 1 << 16, (1 << 31) - 1, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1)
_FLOATS = (0.0, 1.0, -1.0, 0.2, 1e308, 5e-324, float("inf"), float("-inf"), float("nan"))
_TEXTS = ("", "a", "../a", "\x1b[2J\r\n\0", "ü" * 400, "x" * 5000, "[[[", "4294967296")
_BITS = {
    FieldDescriptor.CPPTYPE_UINT32: 32,
    FieldDescriptor.CPPTYPE_INT32: 31,
    FieldDescriptor.CPPTYPE_ENUM: 31,
    FieldDescriptor.CPPTYPE_UINT64: 64,
    FieldDescriptor.CPPTYPE_INT64: 63,
}

Known = Mapping[str, Sequence[Any]]
"""Values that fit the receiver's state, by the name of their field."""
Repair = Callable[[Any], None]
"""Sets the checksums inside a message."""
Value = TypeVar("Value")


class Draws:
    """Choices drawn from bytes.

    Args:
        content: the bytes.
    """

    def __init__(self, content: bytes) -> None:
        self._content, self._position = content, 0

    @property
    def left(self) -> int:
        """Number of bytes that are not used."""
        return len(self._content) - self._position

    def take(self, count: int) -> bytes:
        """Return the next bytes, at most `count`."""
        taken = self._content[self._position : self._position + count]
        self._position += len(taken)
        return taken

    def byte(self) -> int:
        """Return a number below 256."""
        taken = self.take(1)
        return taken[0] if taken else 0

    def short(self) -> int:
        """Return a number below 65536."""
        return self.byte() << 8 | self.byte()

    def pick(self, options: Sequence[Value]) -> Value:
        """Return one of these."""
        return options[self.byte() % len(options)]


def record(message: Message) -> bytes:
    """Return the bytes from which `draw_stream` draws this message, with its checksum if it has the field."""
    content = message.SerializeToString()
    return bytes([_SEALED if _has_checksum(message) else _RAW]) + len(content).to_bytes(2, "big") + content


def draw_stream(
    draws: Draws, kind: type[Message], known: Known, repair: Repair = lambda _: None
) -> list[bytes]:
    """Return the messages of a stream: any bytes, and well-formed messages with checksums or without.

    Args:
        draws: the choices.
        kind: type of the messages.
        known: values that fit the receiver's state.
        repair: sets the checksums inside a well-formed message.
    """
    messages: list[bytes] = []
    while draws.left and len(messages) < MOST_MESSAGES:
        how = draws.byte()
        match how % 8:
            case 0:  # _RAW
                messages.append(draws.take(draws.short()))
            case 1:  # _SEALED
                messages.append(_seal(draws.take(draws.short())))
            case 2 if messages:
                messages.append(messages[-1])
            case _:
                message = draw_message(draws, kind, known)
                if not how & 8:
                    repair(message)
                content = message.SerializeToString()
                messages.append(_seal(content) if _has_checksum(message) and not how & 16 else content)
    return messages


def draw_message(draws: Draws, kind: type[Message], known: Known, depth: int = 0) -> Message:
    """Return a message, some of whose fields are set."""
    message = kind()
    fields = [field for field in kind.DESCRIPTOR.fields if field.name != _CHECKSUM]
    for oneof in kind.DESCRIPTOR.oneofs:
        if len(oneof.fields) > 1:
            _set(draws, message, draws.pick(oneof.fields), known, depth)
            fields = [field for field in fields if field.containing_oneof is not oneof]
    wanted = draws.short()
    for number, field in enumerate(fields):
        if wanted >> number % 16 & 1:
            _set(draws, message, field, known, depth)
    return message


def _set(draws: Draws, message: Any, field: Any, known: Known, depth: int) -> None:
    inner = field.message_type
    if inner is not None and depth == _DEEPEST:
        return
    if inner is not None and inner.GetOptions().map_entry:
        value = inner.fields_by_name["value"]
        for _ in range(draws.byte() % 4):
            key = _scalar(draws, inner.fields_by_name["key"], known)
            entries = getattr(message, field.name)
            if value.message_type is None:
                entries[key] = _scalar(draws, value, known)
            else:
                entries[key].CopyFrom(
                    draw_message(draws, GetMessageClass(value.message_type), known, depth + 1)
                )
    elif field.is_repeated:
        how = draws.byte()
        values = [_value(draws, field, known, depth) for _ in range(how % 4)]
        getattr(message, field.name).extend(values * (_MANY if how == 255 else 1))
    elif inner is not None:
        getattr(message, field.name).CopyFrom(_value(draws, field, known, depth))
    else:
        setattr(message, field.name, _value(draws, field, known, depth))


def _value(draws: Draws, field: Any, known: Known, depth: int) -> Any:
    if field.message_type is not None:
        return draw_message(draws, GetMessageClass(field.message_type), known, depth + 1)
    return _scalar(draws, field, known)


def _scalar(draws: Draws, field: Any, known: Known) -> Any:
    how, is_text = draws.byte(), field.type == FieldDescriptor.TYPE_STRING
    usual = [value for value in known.get(field.name, ()) if isinstance(value, str) == is_text]
    if usual and how < 192:
        return usual[how % len(usual)]
    if field.type == FieldDescriptor.TYPE_BYTES:
        return draws.take(how)
    if is_text:
        return draws.take(how % 64).decode(errors="replace") if how & 64 else _TEXTS[how % len(_TEXTS)]
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return _FLOATS[how % len(_FLOATS)]
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return bool(how & 1)
    number = draws.short() if how & 128 else _NUMBERS[how % len(_NUMBERS)]
    return number & (1 << _BITS[field.cpp_type]) - 1


def _has_checksum(message: Message) -> bool:
    return _CHECKSUM in message.DESCRIPTOR.fields_by_name


def _seal(content: bytes) -> bytes:
    """Return a message's bytes with the field that `encode_with_checksum` appends."""
    return content + b"\x7d" + int(google_crc32c.value(content)).to_bytes(4, "little")
