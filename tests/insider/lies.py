"""The lies of an insider: a peer with a valid certificate that speaks the protocol correctly until it lies.

Which lie it tells, at which message, and what it does afterwards follow from a seed. Lies are found by reflection over
descriptors, so new messages and fields are covered. Checksums are computed after a lie: this is no noise on a line.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from services.protocol.file_refs import make_ref

F = FieldDescriptor

MANY = 70_000
"""Number of elements of a list that is far beyond its bound."""
LONG_TEXT = "x" * 100_000
EDGES = (0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 63, (1 << 64) - 1)
"""Numbers at which counters, sizes and signs change."""
NUMBERS: dict[int, tuple[Any, ...]] = {
    F.CPPTYPE_UINT32: tuple(each for each in EDGES if each < 1 << 32),
    F.CPPTYPE_UINT64: EDGES,
    F.CPPTYPE_INT32: (0, 1, -1, (1 << 31) - 1, -(1 << 31)),
    F.CPPTYPE_INT64: (0, 1, -1, (1 << 63) - 1, -(1 << 63)),
    F.CPPTYPE_DOUBLE: (0.0, 1.0, -1.0, 1e308, 5e-324, math.inf, -math.inf, math.nan),
    F.CPPTYPE_FLOAT: (0.0, 1.0, -1.0, math.inf, -math.inf, math.nan),
    F.CPPTYPE_BOOL: (False, True),
    F.CPPTYPE_ENUM: (0, 1, 2, 3, 99),
}
TEXTS = ("", "x", "\0", "a\0b", "../../x", "\x1b[2J\r\n", "\u202e", "0" * 64, "{" * 999, LONG_TEXT)
JSON_VALUES = (0, 1, -1, 3 * 10**8, (1 << 32) - 1, 1 << 40, 1 << 63, 1e308, None, True, [], {}, *TEXTS)
"""What a value within a file of JSON may become."""

_TRUE = frozenset({"loss", "losses", "sum", "tokens", "non_finite", "checksums", "crc32c", "payload", "data"})
"""Fields of tensors, losses and evaluations. Whether their numbers are true is not checked by what is tested here."""


class Trick(str, Enum):
    """A way to depart from the protocol."""

    FIELD = "field"
    OUT_OF_TURN = "out of turn"
    WITHHELD = "withheld"
    REPEATED = "repeated"
    SLOWED = "slowed"
    RESET = "reset"


class Afterwards(str, Enum):
    """What a liar does after its first lie."""

    HONEST = "is honest"
    AGAIN = "lies again"
    SILENT = "falls silent"
    LEAVES = "leaves"


class Place(NamedTuple):
    """A field within a message: the fields on the way to it, and itself."""

    way: tuple[FieldDescriptor, ...]
    field: FieldDescriptor

    def __str__(self) -> str:
        return ".".join(each.name for each in (*self.way, self.field))


@dataclass(frozen=True)
class Lie:
    """What was told in place of a message.

    Attributes:
        trick: the kind of lie.
        kind: type of the message.
        detail: field and value, for people.
        messages: messages to send in place of the true one.
        delay_seconds: how long they, and all later ones, are delayed.
        resets: whether the stream ends after them.
    """

    trick: Trick
    kind: str
    detail: str = ""
    messages: tuple[Message, ...] = ()
    delay_seconds: float = 0.0
    resets: bool = False

    def __str__(self) -> str:
        return " ".join(filter(None, (self.trick.value, self.kind, self.detail)))


SLOW_SECONDS = (5.0, 40.0, 300.0)


class Liar:
    """Source of one peer's lies.

    Args:
        seed: what all its choices follow from.
        tricks: the lies that it may tell.
        spared: further names of fields that it tells the truth about.
        kind: kind of message that it lies about; empty draws it.
        field: name of the field that it lies about; empty draws it.

    Attributes:
        told: the lies that it has told, for people; at most `MOST_TOLD`.
        files: texts that its messages refer to, by SHA-256. Those that it makes up are added.
        afterwards: what it does after its first lie.
        hurries: whether it lies about the next message, whatever it is, if it has not lied yet.
    """

    MOST_TOLD = 20

    def __init__(
        self,
        seed: object,
        *,
        tricks: Sequence[Trick] = tuple(Trick),
        spared: frozenset[str] = frozenset(),
        kind: str = "",
        field: str = "",
    ) -> None:
        self.draw = random.Random(f"lies of {seed}")
        self.told: list[str] = []
        self.files: dict[str, bytes] = {}
        self.afterwards = self.draw.choice(tuple(Afterwards))
        self.hurries = False
        self._trick = (
            Trick.FIELD if Trick.FIELD in tricks and self.draw.random() < 0.4 else self.draw.choice(tricks)
        )
        self._spared = _TRUE | spared
        self._kind, self._field = kind, field
        self._kinds: dict[str, str] = {}  # by envelope: the kind of message that it waits for
        self._first = self.draw.random() < 0.5  # lie at the first message of the kind
        self._known: dict[tuple[str, int], Any] = {}

    @property
    def lies(self) -> bool:
        """Whether it has lied."""
        return bool(self.told)

    def learn(self, message: Message) -> None:
        """Remember the values of a message, so that messages that are made up look true."""
        for field, value in message.ListFields():
            if field.is_repeated:
                continue
            if field.message_type is not None:
                self.learn(value)
            else:
                self._known[field.name, field.cpp_type] = value

    def tell(self, message: Message) -> Lie | None:
        """Return what is told in place of a message that is due; None if that is the truth.

        Args:
            message: the message. Of an envelope, the body that is set is what counts.
        """
        self.learn(message)
        if self.told and self.afterwards is not Afterwards.AGAIN:
            if self.afterwards is Afterwards.HONEST:
                return None
            return Lie(Trick.WITHHELD, kind_of(message))
        if not self._is_moment(message):
            return None
        lie = self._make(message)
        if lie is not None and len(self.told) < self.MOST_TOLD:
            self.told.append(str(lie))
        return lie

    def tell_now(self, message: Message) -> Lie:
        """Return a lie in place of this very message."""
        self.learn(message)
        lie = self._make(message)
        assert lie is not None
        return lie

    def _is_moment(self, message: Message) -> bool:
        """Return whether the drawn moment has come: some message of a kind, or any if it never comes."""
        envelope, kind = message.DESCRIPTOR.full_name, kind_of(message)
        if envelope not in self._kinds:
            lies_here = self._kinds == {} or self.draw.random() < 0.5
            self._kinds[envelope] = self.draw.choice(kinds_of(message.DESCRIPTOR)) if lies_here else ""
        wanted = self._kind or self._kinds[envelope]
        if self.told:
            return kind == wanted or self.draw.random() < 0.1
        if self.hurries:
            return True
        if kind == wanted:
            return self._first or self.draw.random() < 0.3
        return not self._kind and self.draw.random() < 0.01

    def _make(self, message: Message) -> Lie | None:
        kind = kind_of(message)
        match self._trick:
            case Trick.FIELD:
                return self._change_field(message)
            case Trick.OUT_OF_TURN:
                made = self.make_up(message.DESCRIPTOR)
                return Lie(Trick.OUT_OF_TURN, kind_of(made), shown(made), (made, message))
            case Trick.WITHHELD:
                return Lie(Trick.WITHHELD, kind)
            case Trick.REPEATED:
                return Lie(Trick.REPEATED, kind, "", (message,) * self.draw.choice((2, 3, 50)))
            case Trick.SLOWED:
                return Lie(Trick.SLOWED, kind, "", (message,), self.draw.choice(SLOW_SECONDS))
        return Lie(Trick.RESET, kind, "", (message,) * self.draw.randrange(2), resets=True)

    def _change_field(self, message: Message) -> Lie | None:
        places = [each for each in places_of(message, self._spared) if self._field in ("", each.field.name)]
        if not places:
            return None
        changed = type(message)()
        changed.CopyFrom(message)
        place = self.draw.choice(places)
        value = self._change(changed, place)
        return Lie(Trick.FIELD, kind_of(message), f"{place} = {value}", (changed,))

    def _change(self, message: Any, place: Place) -> str:
        """Set a field of a message to an extreme; return that for people."""
        for step in place.way:
            message = getattr(message, step.name)
            if step.is_repeated and not is_map(step):
                message = self.draw.choice(message) if len(message) else message.add()
        field = place.field
        if is_map(field):
            return self._change_map(getattr(message, field.name), field)
        if field.is_repeated:
            return self._change_list(getattr(message, field.name), field)
        if field.message_type is not None:
            known = self.files.get(getattr(getattr(message, field.name), "sha256", ""))
            if known is not None and self.draw.random() < 0.8:
                return self._change_file(getattr(message, field.name), known.decode())
            message.ClearField(field.name)
            return "absent"
        value = self.extreme(field)
        setattr(message, field.name, value)
        return f"{value!r:.60}"

    def _change_list(self, values: Any, field: FieldDescriptor) -> str:
        match self.draw.randrange(3):
            case 0:
                del values[:]
                return "empty"
            case 1:
                if field.message_type is not None:
                    each = values[0] if len(values) else GetMessageClass(field.message_type)()
                    values.extend([each] * MANY)
                else:
                    values.extend([self.extreme(field)] * (MANY if field.cpp_type != F.CPPTYPE_STRING else 9))
                return f"{len(values)} elements"
            case _:
                if field.message_type is not None:
                    values.add()
                    return "an empty element more"
                value = self.extreme(field)
                values.append(value)
                return f"{value!r:.60} more"

    def _change_file(self, ref: Any, text: str) -> str:
        """Refer to a file that has one extreme value."""
        changed = self.change_json(text).encode()
        ref.CopyFrom(make_ref(changed))
        self.files[ref.sha256] = changed
        return f"a file of {changed[:200].decode()}"

    def _change_map(self, entries: Any, field: FieldDescriptor) -> str:
        value = field.message_type.fields_by_name["value"]
        if value.message_type is not None:
            for key in list(entries):
                self._change(entries[key], Place((), self.draw.choice(value.message_type.fields)))
            return "values of its entries"
        match self.draw.randrange(3):
            case 0:
                entries.clear()
                return "empty"
            case 1:
                key = self.draw.choice([*entries, "x"])
                entries[key] = self.extreme(value)
                return f"{key}: {entries[key]!r:.60}"
            case _:
                for number in range(200):
                    entries[f"x{number}"] = "x"
                return "200 entries"

    def extreme(self, field: FieldDescriptor) -> Any:
        """Return an extreme value of a scalar field; once in a while, one that was seen in a field of that name."""
        seen = self._known.get((field.name, field.cpp_type))
        if (
            seen is not None
            and field.cpp_type in (F.CPPTYPE_UINT32, F.CPPTYPE_UINT64)
            and self.draw.random() < 0.3
        ):
            most = (1 << (32 if field.cpp_type == F.CPPTYPE_UINT32 else 64)) - 1
            return min(max(0, seen + self.draw.choice((-1, 1))), most)
        if field.type == F.TYPE_BYTES:
            return self.draw.choice((b"", b"\0", b"[]," * 100_000))
        if field.cpp_type == F.CPPTYPE_STRING:
            return self.draw.choice(TEXTS)
        return self.draw.choice(NUMBERS[field.cpp_type])

    def make_up(self, descriptor: Descriptor, depth: int = 0) -> Message:
        """Return a message whose fields are values seen before, or a few extremes. Of a oneof, one field is set."""
        message: Any = GetMessageClass(descriptor)()
        chosen = {
            each.name: self.draw.choice(each.fields) for each in descriptor.oneofs if len(each.fields) > 1
        }
        for field in descriptor.fields:
            oneof = field.containing_oneof
            if oneof is not None and oneof.name in chosen and chosen[oneof.name] is not field:
                continue
            if field.name == "own_crc32c" or field.name in self._spared or is_map(field):
                continue
            if field.message_type is not None:
                if depth < 4 and (oneof is not None or self.draw.random() < 0.7):
                    inner = self.make_up(field.message_type, depth + 1)
                    if field.is_repeated:
                        getattr(message, field.name).append(inner)
                    else:
                        getattr(message, field.name).CopyFrom(inner)
            elif not field.is_repeated:
                known = self._known.get((field.name, field.cpp_type))
                if known is not None and self.draw.random() < 0.8:
                    setattr(message, field.name, known)
                elif self.draw.random() < 0.3:
                    setattr(message, field.name, self.extreme(field))
        return message

    def change_json(self, text: str, values: Sequence[Any] = JSON_VALUES) -> str:
        """Return a JSON text with one of its values at an extreme, half of the time in the last element of a list.

        What is last contradicts nothing that comes after it: in a layout, offsets follow from sizes before them.
        """
        document = json.loads(text)
        part = document[-1:] if isinstance(document, list) and self.draw.random() < 0.5 else document
        spots = list(_spots(part))
        numbers = [(holder, key) for holder, key in spots if type(holder[key]) in (int, float)]
        if numbers and self.draw.random() < 0.5:  # sizes and counts
            spots = numbers
        if not spots:
            return text
        holder, key = self.draw.choice(spots)
        of_kind = [each for each in values if isinstance(each, str) == isinstance(holder[key], str)]
        holder[key] = self.draw.choice(of_kind if self.draw.random() < 0.8 else values)
        if part is not document:
            document[-1:] = part
        return json.dumps(document, sort_keys=True, separators=(",", ":"))


def is_map(field: FieldDescriptor) -> bool:
    """Return whether a field is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def kinds_of(descriptor: Descriptor) -> list[str]:
    """Return the kinds of messages that an envelope can carry; of another message, its own name."""
    body = descriptor.oneofs_by_name.get("body")
    return [field.name for field in body.fields] if body is not None else [descriptor.name]


def kind_of(message: Message) -> str:
    """Return the kind of a message: that of an envelope's body, else its own name."""
    if "body" in message.DESCRIPTOR.oneofs_by_name:
        return str(message.WhichOneof("body") or "")
    return message.DESCRIPTOR.name


def places_of(
    message: Message, spared: frozenset[str], way: tuple[FieldDescriptor, ...] = ()
) -> Iterator[Place]:
    """Yield the fields of a message, and those of the messages in it, that a lie may be about."""
    for field in message.DESCRIPTOR.fields:
        if field.name in spared or field.name == "own_crc32c":
            continue
        oneof = field.containing_oneof
        if oneof is not None and len(oneof.fields) > 1 and message.WhichOneof(oneof.name) != field.name:
            continue
        inner = field.message_type
        if inner is None or is_map(field):
            yield Place(way, field)
            continue
        if field.is_repeated:
            yield Place(way, field)
            values = getattr(message, field.name)
            if len(values):
                yield from places_of(values[0], spared, (*way, field))
        elif message.HasField(field.name):
            if oneof is None:
                yield Place(way, field)
            yield from places_of(getattr(message, field.name), spared, (*way, field))


def shown(message: Message) -> str:
    """Return a message on one line, for people."""
    return f"{' '.join(str(message).split()):.200}"


def _spots(document: Any) -> Iterator[tuple[Any, Any]]:
    """Yield where each value within a JSON document is: its list or object, and its index or key."""
    if isinstance(document, dict | list):
        for key in list(document) if isinstance(document, dict) else range(len(document)):
            yield document, key
            yield from _spots(document[key])
