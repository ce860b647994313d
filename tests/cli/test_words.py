"""Durations and numbers in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.words import short_duration, spell_duration, spell_number, spell_share


@pytest.mark.parametrize(
    ("seconds", "long", "short"),
    [
        (0.0, "0 s", "0s"),
        (0.123, "0.12 s", "0s"),
        (2.54, "2.5 s", "3s"),
        (59.4, "59 s", "59s"),
        (59.9, "1 min", "1m"),
        (80, "1 min 20 s", "1m20s"),
        (3599.9, "1 h", "1h"),
        (4320, "1 h 12 min", "1h12m"),
        (86400 * 3 + 3600 * 4 + 1, "3 d 4 h", "3d4h"),
        (86399, "1 d", "1d"),
        (-1.0, "0 s", "0s"),
    ],
)
def test_durations_have_their_two_largest_units(seconds: float, long: str, short: str) -> None:
    assert (spell_duration(seconds), short_duration(seconds)) == (long, short)


@given(st.floats(0, 1e9))
def test_a_duration_is_short_and_names_no_full_unit(seconds: float) -> None:
    text = spell_duration(seconds)
    assert "60 s" not in text and "60 min" not in text and " 24 h" not in text
    assert len(short_duration(seconds)) <= 9


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0123456, "0.0123"), (1.5, "1.5"), (1234.5, "1,230"), (999.6, "1,000"), (8.1e-7, "8.1e-07")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert spell_number(value) == text


@pytest.mark.parametrize(("share", "text"), [(0.0, "0 %"), (0.713, "71 %"), (0.004, "0.4 %"), (1.0, "100 %")])
def test_shares_are_whole_per_cents_unless_they_are_small(share: float, text: str) -> None:
    assert spell_share(share) == text
