"""What a person reads is one line that a terminal shows as it is."""

from __future__ import annotations

from services.errors import Failed, Refused


def test_what_a_terminal_would_act_on_is_escaped() -> None:
    assert str(Refused("name 'a\nb\x1b[31m': expected words")) == r"name 'a\nb\x1b[31m': expected words"
    assert str(Failed("Übung 5 µs — gut")) == "Übung 5 µs — gut"
