"""Texts that would act on a terminal or a log, and messages that are full of them."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\ninjected ERROR line\u202e\u2066\u2028\x00\x7f[bold]"
LONG = HOSTILE + "x" * 1_000_000
_DEEPEST = 4


def fill_texts(message: Message, text: str, depth: int = 0) -> None:
    """Set every text in a message, and in the messages inside it, to this one."""
    if depth > _DEEPEST:
        return
    for field in message.DESCRIPTOR.fields:
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            if inner.fields_by_name["value"].type == FieldDescriptor.TYPE_STRING:
                getattr(message, field.name)[text] = text
            elif inner.fields_by_name["value"].message_type is not None:
                fill_texts(getattr(message, field.name)[text], text, depth + 1)
            else:
                getattr(message, field.name)[text] = 1
        elif inner is not None:
            nested = getattr(message, field.name)
            if field.is_repeated:
                fill_texts(nested.add(), text, depth + 1)
            elif field.containing_oneof is None or message.WhichOneof(field.containing_oneof.name) is None:
                nested.SetInParent()
                fill_texts(nested, text, depth + 1)
        elif field.type == FieldDescriptor.TYPE_STRING:
            if field.is_repeated:
                getattr(message, field.name).append(text)
            else:
                setattr(message, field.name, text)


def texts_of(
    message: Message, skipped: frozenset[str] = frozenset()
) -> Iterator[tuple[FieldDescriptor, str]]:
    """Yield each text in a message with its field.

    Args:
        message: the message.
        skipped: names of message types that are not looked at.
    """
    for field, value in message.ListFields():
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            for key, each in value.items():
                if isinstance(key, str):
                    yield field, key
                if isinstance(each, str):
                    yield field, each
                elif isinstance(each, Message):
                    yield from texts_of(each, skipped)
        elif inner is not None:
            if inner.name not in skipped:
                for each in value if field.is_repeated else (value,):
                    yield from texts_of(each, skipped)
        elif field.type == FieldDescriptor.TYPE_STRING:
            for each in value if field.is_repeated else (value,):
                yield field, each


def variants(descriptor: Descriptor, text: str) -> Iterator[Message]:
    """Yield messages of a type, one for each alternative of its `oneof`s, with each text set."""
    alternatives = [field.name for each in descriptor.oneofs for field in each.fields]
    kind = GetMessageClass(descriptor)
    for name in alternatives or [""]:
        message = kind()
        if name and descriptor.fields_by_name[name].message_type is not None:
            getattr(message, name).SetInParent()
            fill_texts(getattr(message, name), text, 1)
        fill_texts(message, text)
        yield message


def is_clean(text: str) -> bool:
    """Return whether a terminal shows each line of a text unchanged."""
    return all(line.isprintable() for line in text.split("\n"))
