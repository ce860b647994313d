"""Hypothesis strategies for any well-formed message, as a faulty or newer peer might send it."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from services.errors import TiermeshError

F = FieldDescriptor
COUNTS = st.integers(0, 5)
SCALARS: dict[int, st.SearchStrategy[Any]] = {
    F.CPPTYPE_UINT32: COUNTS | st.sampled_from([1 << 16, (1 << 31) - 1, (1 << 32) - 1]),
    F.CPPTYPE_UINT64: COUNTS | st.sampled_from([1 << 32, (1 << 63) - 1, (1 << 64) - 1]),
    F.CPPTYPE_INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    F.CPPTYPE_INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    F.CPPTYPE_DOUBLE: st.sampled_from([0.0, 1.0, -1.0, 1e308, -1e308, 5e-324])
    | st.sampled_from([float("inf"), float("-inf"), float("nan")]),
    F.CPPTYPE_BOOL: st.booleans(),
    F.CPPTYPE_ENUM: st.integers(0, 5) | st.just(99),
}
TEXTS = st.sampled_from(["", "a", "b", "[]", "w1", "../x", "\n\0", "ü" * 500]) | st.text(max_size=8)


def message(kind: type[Message], /, **likely: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for messages of a type.

    Args:
        kind: type of the messages.
        likely: strategies of fields, by name, from which most values of these fields are drawn. Others are unset
            or anything.
    """

    def value(field: Any) -> st.SearchStrategy[Any]:
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry:
                inner = field.message_type.fields_by_name["value"]
                return st.dictionaries(TEXTS, one(inner), max_size=3)
            if field.is_repeated:
                return st.lists(one(field), max_size=4)
            return one(field)
        return st.lists(one(field), max_size=4) if field.is_repeated else one(field)

    def one(field: Any) -> st.SearchStrategy[Any]:
        if field.message_type is not None:
            return message(field.message_type._concrete_class, **likely)
        if field.type == F.TYPE_BYTES:
            return st.binary(max_size=8)
        if field.cpp_type == F.CPPTYPE_STRING:
            return TEXTS
        return SCALARS[field.cpp_type]

    named, others = {}, {}
    for field in kind.DESCRIPTOR.fields:
        if field.name == "own_crc32c":
            continue  # left out, as any peer may do: a message with a wrong checksum is refused unread
        usual = likely.get(field.name)
        if usual is None:
            others[field.name] = value(field)
        else:
            named[field.name] = st.one_of(*[usual] * 6, value(field))
    return st.fixed_dictionaries(named, optional=others).map(lambda given: _filled(kind, given))


def _filled(kind: type[Message], given: dict[str, Any]) -> Message:
    filled = kind()
    for name, value in given.items():
        field = kind.DESCRIPTOR.fields_by_name[name]
        if isinstance(value, dict):
            filled.MergeFrom(kind(**{name: value}))
        elif field.is_repeated:
            getattr(filled, name).extend(value)
        elif field.message_type is not None:
            getattr(filled, name).CopyFrom(value)
        else:
            setattr(filled, name, value)
    return filled


def is_one_line(error: TiermeshError) -> bool:
    """Return whether an error's text is one short line that a terminal can show."""
    return str(error).isprintable() and 0 < len(str(error)) < 5000
