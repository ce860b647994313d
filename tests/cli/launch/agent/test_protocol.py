"""Messages of an agent: every message survives the wire, and every other line is refused."""

from __future__ import annotations

import json
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.launch.agent import protocol
from cli.launch.agent.protocol import MAX_LINE_BYTES, PREFIX, Message, Probed, Stop, WriteFile
from services.errors import Refused
from services.printable import LINE_CHARACTERS

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(-(1 << 60), 1 << 60)
VALUES = {
    "str": TEXTS,
    "int": NUMBERS,
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "tuple[int, ...]": st.lists(NUMBERS, max_size=5).map(tuple),
    "tuple[str, ...]": st.lists(TEXTS, max_size=5).map(tuple),
    "collections.abc.Mapping[str, str]": st.dictionaries(TEXTS, TEXTS, max_size=5),
}


def name_of(hint: object) -> str:
    return hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)


MESSAGES = st.one_of(
    [
        st.builds(each, **{name: VALUES[name_of(hint)] for name, hint in get_type_hints(each).items()})
        for each in protocol.MESSAGE_TYPES
    ]
)


@given(MESSAGES)
def test_every_message_survives_the_wire_as_one_line(message: Message) -> None:
    line = protocol.encode(message)
    assert line.count(b"\n") == 1
    assert protocol.decode(line) == message


def refusal(line: bytes) -> str:
    with pytest.raises(Refused) as refused:
        protocol.decode(line)
    text = str(refused.value)
    assert text.isprintable()
    assert len(text) <= LINE_CHARACTERS
    return text


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused_in_one_line(content: bytes) -> None:
    refusal(content)
    refusal(PREFIX + content)


JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(MESSAGES, JSON, st.data())
def test_a_field_of_another_type_is_refused(message: Message, value: object, data: st.DataObject) -> None:
    content = json.loads(protocol.encode(message)[len(PREFIX) :])
    name = data.draw(st.sampled_from(sorted(content)))
    line = PREFIX + json.dumps({**content, name: value}).encode()
    try:
        assert protocol.encode(protocol.decode(line))
    except Refused as refused:
        assert str(refused).isprintable()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[" * 100_000, "no JSON in UTF-8"),
        (b'{"type":"Probed","unix_seconds":1e999,"used_ports":[]}', "Probed.unix_seconds"),
        (b'{"type":"Probed","unix_seconds":NaN,"used_ports":[]}', "NaN"),
        (b'{"type":"Stop","ranks":[true]}', "Stop.ranks"),
        (b'{"type":"WriteFile","path":"a","text":"\\ud800","secret":true}', "no JSON in UTF-8"),
        (b'{"type":"Stop"}', "has fields"),
        (b'{"type":"Stop","ranks":[],"more":1}', "has fields"),
        (b'{"type":"Halt"}', "type 'Halt'"),
        (b"[]", "no JSON object"),
    ],
)
def test_each_defect_of_a_line_is_named(content: bytes, said: str) -> None:
    assert said in refusal(PREFIX + content)


def test_a_line_that_is_too_long_is_neither_sent_nor_taken() -> None:
    with pytest.raises(Refused, match="expected at most"):
        protocol.encode(WriteFile("a", "x" * MAX_LINE_BYTES, secret=False))
    assert "bytes" in refusal(PREFIX + b" " * MAX_LINE_BYTES)


def test_a_whole_number_is_a_time_too() -> None:
    line = PREFIX + b'{"type":"Probed","unix_seconds":5,"used_ports":[7070]}'
    assert protocol.decode(line) == Probed(5.0, (7070,))
    assert isinstance(protocol.decode(protocol.encode(Stop((1,)))), Stop)
