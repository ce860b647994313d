"""The picture: what it says in words, that its colours can be seen, and that it stays small."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np
import pytest

from cli.plot.curves import Curve
from cli.plot.picture import COLOURS, DASHES, PAPERS, Look, check_columns, draw
from services.errors import Refused

NAN = math.nan
SVG = "{http://www.w3.org/2000/svg}"


def curve(values: Sequence[float], job: str = "tiny job-1", column: str = "loss") -> Curve:
    return Curve(job, column, np.arange(1.0, len(values) + 1), np.array(values, float))


def drawn(curves: Sequence[Curve], look: Look | None = None) -> ElementTree.Element:
    return ElementTree.fromstring(draw(curves, look or Look("a title")))


def texts(root: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SVG}text")]


def paths(root: ElementTree.Element) -> list[str]:
    return [each.attrib["d"] for each in root.iter(f"{SVG}path")]


def numbers(root: ElementTree.Element) -> list[float]:
    found = [number for path in paths(root) for number in re.findall(r"[-\d.]+", path)]
    assert all(re.fullmatch(r"[MLZ\d. ]*", path) for path in paths(root)), "no NaN and no infinity"
    return [float(each) for each in found]


def test_a_picture_has_title_axes_and_a_legend() -> None:
    root = drawn([curve([3.0, 2.0, 1.0]), curve([2.0, 1.5, 1.2], "other job-2")])
    said = texts(root)
    assert said[0] == "a title" and root.find(f"{SVG}title") is not None
    assert {"step", "loss", "tiny job-1", "other job-2"} <= set(said)
    assert len(paths(root)) == 2


def test_columns_of_other_units_have_panels_of_their_own() -> None:
    curves = [
        curve([3.0, 2.0]),
        curve([2.5], column="validation_loss"),
        curve([10.0, 9.0], column="grad_norm"),
    ]
    root = drawn(curves)
    said = texts(root)
    assert {"loss", "gradient norm"} <= set(said) and said.count("step") == 2
    assert {"tiny job-1: loss", "tiny job-1: validation_loss", "tiny job-1: grad_norm"} <= set(said)
    assert len([*root.iter(f"{SVG}circle")]) == 1, "the evaluation is marked"


def test_gaps_break_the_line_and_are_counted() -> None:
    root = drawn([curve([3.0, NAN, NAN, 2.0, 1.0])])
    (path,) = paths(root)
    assert path.count("M") == 2
    assert "tiny job-1: 2 of 5 steps without a loss that is finite" in texts(root)
    assert len([*root.iter(f"{SVG}circle")]) == 1, "a value alone is a point"
    root = drawn([curve([1.0, 2.0]), curve([NAN, NAN], column="mfu")])
    assert "tiny job-1: no mfu is known" in texts(root)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "values",
    [[1.0], [2.0, 2.0], [1e-300, 1e299], [1e299, 9e299, NAN], [*np.linspace(1, 2, 100)], [5.0, 5.0001]],
)
def test_every_range_of_values_lies_inside(values: list[float], log: bool) -> None:
    root = drawn([curve(values)], Look("a", log=log))
    height = float(root.attrib["height"])
    assert all(0 <= each <= max(960, height) for each in numbers(root))
    assert ("loss, logarithmic" in texts(root)) is log


def test_long_curves_are_thinned_and_keep_their_peaks() -> None:
    values = np.ones(1_000_000)
    values[500_000] = 9.0
    values[7] = NAN
    picture = draw([curve(values)], Look("a", smooth_steps=1))
    assert len(picture) < 100_000
    root = ElementTree.fromstring(picture)
    said = texts(root)
    assert "drawn: means of 1,000 steps, over a band from smallest to largest" in said
    assert "tiny job-1: 1 of 1,000,000 steps without a loss that is finite" in said
    assert "8" in said, "the axis reaches to the peak"


def test_names_are_escaped() -> None:
    name = '<script>alert(1)</script>"&\x1b[31m\u202e'
    root = drawn([curve([1.0, 2.0], name)], Look(name))
    assert not [each for each in root.iter() if each.tag.endswith("script")]
    assert any(each.startswith("<script>") for each in texts(root))
    assert not any("\x1b" in each or "\u202e" in each for each in texts(root))


def test_every_colour_can_be_seen_in_light_and_dark() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in COLOURS:
        for paper in PAPERS:
            low, high = sorted((luminance(colour), luminance(paper)))
            assert (high + 0.05) / (low + 0.05) >= 3, f"{colour} on {paper}"
    assert len(set(COLOURS)) == len(set(DASHES)) == len(COLOURS) == len(DASHES)


def test_too_many_curves_and_unknown_columns_are_refused() -> None:
    check_columns(["loss", "validation_loss", "grad_norm"], 4)
    check_columns(["loss"], 8)
    with pytest.raises(Refused, match=r"loss, validation_loss of 5 jobs given, expected at most 8 curves"):
        check_columns(["loss", "validation_loss", "grad_norm"], 5)
    with pytest.raises(Refused, match=r"--columns: 'los' given, expected some of loss,"):
        check_columns(["los"], 1)
