"""Tests that an error's text is one line which a terminal shows unchanged."""

from __future__ import annotations

from services.errors import ExitCode, Failed, Refusal, Refused
from services.printable import FAILURE_CHARACTERS
from tests.support.hostile import HOSTILE


def test_control_characters_are_escaped() -> None:
    assert str(Refused("name 'a\nb\x1b[31m': expected words")) == r"name 'a\nb\x1b[31m': expected words"
    assert str(Failed("Übung 5 µs — gut")) == "Übung 5 µs — gut"


def test_the_exit_codes_are_a_contract() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "DONE": 0,
        "FAILED": 1,
        "REFUSED": 2,
        "NOT_YET": 75,
    }


def test_the_reason_of_a_refusal_is_one_printable_line() -> None:
    reason = Refusal(f"worker {HOSTILE}{'x' * 10_000}; rename it").reason
    assert reason.isprintable() and len(reason) <= FAILURE_CHARACTERS
    assert reason.endswith("; rename it")
