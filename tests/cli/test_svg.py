"""SVG that any XML parser reads, whatever a name has in it, and round numbers for axes."""

from __future__ import annotations

import xml.etree.ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.svg import document, element, label, round_ticks


@given(st.text(st.characters(), max_size=300))
def test_any_text_is_well_formed_and_adds_no_element(text: str) -> None:
    picture = document(100, 50, [label(1, 2, text), element("rect", x=0.5, class_="a", stroke_width=1)])
    root = xml.etree.ElementTree.fromstring(picture)
    assert [each.tag.rpartition("}")[2] for each in root] == ["text", "rect"]
    assert root[1].attrib == {"x": "0.5", "class": "a", "stroke-width": "1"}


@given(
    st.floats(-1e30, 1e30, allow_subnormal=False),
    st.floats(1e-20, 1e30),
    st.integers(2, 12),
)
def test_ticks_are_few_and_inside(low: float, span: float, most: int) -> None:
    high = low + span
    if span < 1e-6 * abs(low):  # fewer digits than a float64 has between them
        return
    ticks = round_ticks(low, high, most)
    assert len(ticks) <= most + 1
    assert all(low - span * 1e-6 <= each <= high + span * 1e-6 for each in ticks)
    assert ticks == sorted(ticks)


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0.0, 14.0, 10, [0, 2, 4, 6, 8, 10, 12, 14]),
        (0.0, 10.0, 10, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (1.3, 4.2, 6, [1.5, 2.0, 2.5, 3.0, 3.5, 4.0]),
        (1.0, 2000.0, 8, [500, 1000, 1500, 2000]),
    ],
)
def test_ticks_are_round(low: float, high: float, most: int, expected: list[float]) -> None:
    assert round_ticks(low, high, most) == pytest.approx(expected)
