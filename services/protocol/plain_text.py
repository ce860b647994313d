"""Texts of received messages, made printable and short where they enter a process, once for all later uses."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from services.printable import FAILURE_CHARACTERS, printable

NAME_CHARACTERS = 200
"""Longest name of a job, a person, a worker or another process."""
PROSE_CHARACTERS = 1000
"""Longest text that a process composes of several others, such as a line of a job's log."""
EXACT_CHARACTERS = 4096
"""Longest id, hash or path. A longer one, or one that has to be escaped, equals none that this process knows."""

_LIMITS = {
    **dict.fromkeys(("name", "worker", "peer", "owner", "optimizer", "leader", "role"), NAME_CHARACTERS),
    **dict.fromkeys(
        ("text", "more_texts", "detail", "skipped", "waiting", "waits_for", "what"), PROSE_CHARACTERS
    ),
    "reason": FAILURE_CHARACTERS,
}
_UNTOUCHED_FIELDS = frozenset({"spec_json"})
"""Fields that are parsed strictly, and whose errors quote them printably."""
_UNTOUCHED_MESSAGES = frozenset({"ChunkHeader", "Chunk", "ArrayHeader", "LinkState", "PassMessage"})
"""Messages of the data plane, whose texts are only ever compared: they are too many to check each."""


def make_printable(message: Message) -> None:
    """Make each text in a received message one printable line of bounded length, in place.

    Other texts are unchanged.
    """
    if not has_text(message.DESCRIPTOR):
        return
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _clean_map(getattr(message, field.name), field)
        elif field.message_type is not None and has_text(field.message_type):
            for each in value if field.is_repeated else (value,):
                make_printable(each)
        elif (
            field.message_type is None
            and field.type == FieldDescriptor.TYPE_STRING
            and field.name not in _UNTOUCHED_FIELDS
        ):
            limit = limit_of(field)
            if not field.is_repeated:
                if not _is_plain(value, limit):
                    setattr(message, field.name, printable(value, limit))
            elif not all(_is_plain(each, limit) for each in value):
                value[:] = [printable(each, limit) for each in value]


def limit_of(field: FieldDescriptor) -> int:
    """Return the longest text of a field after `make_printable`, in characters."""
    return _LIMITS.get(field.name, EXACT_CHARACTERS)


@cache
def has_text(descriptor: Descriptor) -> bool:
    """Return whether a message of this type can have a text that `make_printable` looks at."""
    return _reaches_text(descriptor, frozenset())


def _reaches_text(descriptor: Descriptor, above: frozenset[str]) -> bool:
    if descriptor.name in _UNTOUCHED_MESSAGES or descriptor.full_name in above:
        return False
    return any(
        field.type == FieldDescriptor.TYPE_STRING
        or (
            field.message_type is not None
            and _reaches_text(field.message_type, above | {descriptor.full_name})
        )
        for field in descriptor.fields
    )


def _clean_map(entries: Any, field: FieldDescriptor) -> None:
    assert field.message_type is not None
    kind = field.message_type.fields_by_name["value"]
    for key, value in list(entries.items()):
        plain_key = printable(key, EXACT_CHARACTERS) if isinstance(key, str) else key
        if kind.message_type is not None:
            make_printable(value)
            if plain_key != key:
                entries[plain_key].CopyFrom(value)
                del entries[key]
            continue
        plain_value = printable(value, EXACT_CHARACTERS) if isinstance(value, str) else value
        if (plain_key, plain_value) != (key, value):
            del entries[key]
            entries[plain_key] = plain_value


def _is_plain(text: str, limit: int) -> bool:
    return len(text) <= limit and text.isprintable()
