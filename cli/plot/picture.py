"""Draws curves as SVG: a panel for each unit, one above the other, over the same steps.

A curve has a colour and a dash pattern of its own, so that it can be told from others in print and without colours. The
colours have a contrast of 3 or more on white and on the dark ground, which a viewer in dark mode gets. A gap has a mark
on the axis, and a note has their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cli.plot.curves import SPARSE, Curve, Floats
from cli.svg import document, element, label, plain, round_ticks
from services.errors import Refused

AXES: Mapping[str, str] = {
    "loss": "loss",
    "validation_loss": "loss",
    "grad_norm": "gradient norm",
    "learning_rate": "learning rate",
    "step_seconds": "seconds",
    "compute_seconds": "seconds",
    "wire_seconds": "seconds",
    "update_seconds": "seconds",
    "wait_seconds": "seconds",
    "tokens_per_second": "tokens a second",
    "mfu": "MFU",
}
"""Columns that can be drawn, and the axis of each. Those of one axis share a panel."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#8c6bb1", "#777777", "#1f8fbf")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "5 2 1 2 1 2", "4 4", "14 3 3 3")
MOST_CURVES = len(COLOURS)
"""Largest number of curves in a panel."""
PAPERS = ("#ffffff", "#16181c")
"""The ground, light and dark."""
_STYLE = """
text { fill: #1a1a1a } .paper { fill: #ffffff } .grid { stroke: #dddddd } .axis { stroke: #666666 }
@media screen and (prefers-color-scheme: dark) {
text { fill: #e6e6e6 } .paper { fill: #16181c } .grid { stroke: #34383f } .axis { stroke: #9a9a9a }
}
"""
_WIDTH, _LEFT, _RIGHT, _TOP = 960, 84, 24, 40
_PANEL, _LEGEND_LINE, _NOTE_LINE, _BETWEEN = 280, 18, 16, 56
_CHARACTER = 6.6
"""Width of a letter of a legend, more or less."""
_MOST_POINTS = 1000
"""Points of a curve; with more steps each is a mean, with a band from the smallest to the largest value."""


@dataclass(frozen=True)
class Look:
    """What a picture has besides its curves.

    Attributes:
        title: its title.
        log: whether the vertical axes are logarithmic.
        smooth_steps: number of steps whose mean the curves have.
    """

    title: str
    log: bool = False
    smooth_steps: int = 1


def check_columns(columns: Sequence[str], jobs: int) -> None:
    """Check that some columns of so many jobs can be drawn.

    Raises:
        Refused: a column is unknown, or a panel would have too many curves.
    """
    for name in columns:
        if name not in AXES:
            raise Refused(f"--columns: {name[:80]!r} given, expected some of {', '.join(AXES)}; correct it")
    for axis in dict.fromkeys(AXES[name] for name in columns):
        names = [name for name in columns if AXES[name] == axis]
        if len(names) * jobs > MOST_CURVES:
            raise Refused(
                f"--columns: {', '.join(names)} of {jobs} jobs given, expected at most {MOST_CURVES} curves of one "
                "unit; give fewer jobs or columns, for example --columns loss"
            )


def draw(curves: Sequence[Curve], look: Look) -> str:
    """Return the picture of some curves, of which at least one has values."""
    shown = [each for each in curves if not each.is_empty]
    first, last = min(each.steps[0] for each in shown), max(each.steps[-1] for each in shown)
    if first == last:
        first, last = first - 1, last + 1
    names_column = len({each.column for each in shown}) > 1
    elements: list[str] = []
    y = float(_TOP)
    for axis in dict.fromkeys(AXES[each.column] for each in shown):
        panel = [each for each in shown if AXES[each.column] == axis]
        texts = [f"{each.job}: {each.column}" if names_column else each.job for each in panel]
        legend = list(_legend(texts, y))
        elements += [part for part, _ in legend]
        y = legend[-1][1] + _LEGEND_LINE
        elements += _panel(panel, axis, y, (first, last), look.log)
        y += _PANEL + _BETWEEN
    for note in _notes(curves, look):
        elements.append(label(_LEFT, y, note, font_size=11))
        y += _NOTE_LINE
    ground = element("rect", class_="paper", width=_WIDTH, height=y, fill=PAPERS[0])
    heads = [
        element("title", plain(look.title)),
        element("style", _STYLE),
        ground,
        label(_LEFT, 24, look.title, font_size=15, font_weight="bold"),
    ]
    return document(_WIDTH, y, [*heads, *elements], font_family="sans-serif", font_size=12, role="img")


def _legend(texts: Sequence[str], y: float) -> Iterator[tuple[str, float]]:
    """Yield elements that name the curves, each with its line's place."""
    x = float(_LEFT)
    for number, text in enumerate(texts):
        width = 44 + _CHARACTER * len(text)
        if x > _LEFT and x + width > _WIDTH - _RIGHT:
            x, y = float(_LEFT), y + _LEGEND_LINE
        yield element("line", x1=x, y1=y - 4, x2=x + 26, y2=y - 4, **_stroke(number)), y
        yield label(x + 32, y, text), y
        x += width


def _panel(
    curves: Sequence[Curve], axis: str, top: float, steps: tuple[float, float], log: bool
) -> Iterator[str]:
    """Yield the elements of a panel: its axes, its curves, and marks of their gaps."""
    lines = [_Line.make(each) for each in curves]
    low, high = min(each.lowest for each in lines), max(each.highest for each in lines)
    if low == high:
        low, high = (low / 2, 2 * high) if log else (low - abs(low or 1) / 10, high + abs(high or 1) / 10)
    place = _Place(steps, (low, high), top, log)
    bottom, right = top + _PANEL, _WIDTH - _RIGHT
    for value in place.ticks():
        y = float(place.y(value))
        yield element("line", class_="grid", x1=_LEFT, y1=y, x2=right, y2=y, stroke="#dddddd")
        yield label(_LEFT - 8, y + 4, f"{value:.6g}", text_anchor="end")
    for step in round_ticks(*steps, 8):
        if step == int(step):
            x = float(place.x(step))
            yield element("line", class_="axis", x1=x, y1=bottom, x2=x, y2=bottom + 5, stroke="#666666")
            yield label(x, bottom + 18, f"{step:,.0f}", text_anchor="middle")
    yield element("line", class_="axis", x1=_LEFT, y1=bottom, x2=right, y2=bottom, stroke="#666666")
    yield label((_LEFT + right) / 2, bottom + 34, "step", text_anchor="middle")
    middle = top + _PANEL / 2
    title = f"{axis}, logarithmic" if log else axis
    yield label(18, middle, title, text_anchor="middle", transform=f"rotate(-90 18 {middle:g})")
    for number, line in enumerate(lines):
        yield from _draw_line(line, place, number, bottom)


def _draw_line(line: _Line, place: _Place, number: int, bottom: float) -> Iterator[str]:
    x, y = place.x(line.steps), place.y(line.values)
    colour = COLOURS[number]
    if line.low is not line.values:
        band = "".join(
            _path([*zip(x[run], place.y(line.high[run]), strict=True)])
            + _path([*zip(x[run], place.y(line.low[run]), strict=True)][::-1], close=True)
            for run in _runs(line.values)
        )
        yield element("path", d=band, fill=colour, fill_opacity=0.18)
    path = "".join(_path([*zip(x[run], y[run], strict=True)]) for run in _runs(line.values))
    yield element("path", d=path, fill="none", **_stroke(number))
    alone = [run.start for run in _runs(line.values) if run.stop - run.start == 1]
    for point in range(len(x)) if line.is_sparse else alone:
        if not math.isnan(y[point]):
            yield element("circle", cx=float(x[point]), cy=float(y[point]), r=2.5, fill=colour)
    for at in np.unique(np.round(place.x(line.gaps))):
        yield element("line", x1=float(at), y1=bottom - 7, x2=float(at), y2=bottom, stroke=colour)


def _stroke(number: int) -> dict[str, str]:
    dash = {"stroke_dasharray": DASHES[number]} if DASHES[number] else {}
    return {"stroke": COLOURS[number], "stroke_width": "1.6", **dash}


@dataclass(frozen=True)
class _Line:
    """A curve with at most as many points as are drawn.

    Attributes:
        steps: the last step of each point.
        values: its mean; NaN at a gap.
        low: its smallest value.
        high: its largest value.
        gaps: all steps without a value.
        is_sparse: whether its points are marked.
    """

    steps: Floats
    values: Floats
    low: Floats
    high: Floats
    gaps: Floats
    is_sparse: bool

    @classmethod
    def make(cls, curve: Curve) -> _Line:
        steps, values, is_sparse = curve.steps, curve.values, curve.column in SPARSE
        width = -(-len(steps) // _MOST_POINTS)
        if width == 1:
            return cls(steps, values, values, values, curve.gaps, is_sparse)
        starts = np.arange(0, len(steps), width)
        known = ~np.isnan(values)
        counts = np.add.reduceat(known.astype(np.int64), starts)
        totals = np.add.reduceat(np.where(known, values, 0.0), starts)
        means = np.where(counts > 0, totals / np.maximum(1, counts), np.nan)
        low, high = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
        ends = np.append(starts[1:], len(steps)) - 1
        return cls(steps[ends], means, low, high, curve.gaps, False)

    @property
    def lowest(self) -> float:
        return float(np.nanmin(self.low))

    @property
    def highest(self) -> float:
        return float(np.nanmax(self.high))


@dataclass(frozen=True)
class _Place:
    """Where steps and values lie in a panel."""

    steps: tuple[float, float]
    values: tuple[float, float]
    top: float
    log: bool

    def x(self, steps: Floats | float) -> Floats:
        first, last = self.steps
        return np.asarray(_LEFT + (np.asarray(steps) - first) / (last - first) * (_WIDTH - _RIGHT - _LEFT))

    def y(self, values: Floats | float) -> Floats:
        numbers, ends = np.asarray(values), np.asarray(self.values)
        if self.log:
            numbers, ends = np.log10(numbers), np.log10(ends)
        return np.asarray(self.top + _PANEL * (1 - (numbers - ends[0]) / (ends[1] - ends[0])))

    def ticks(self) -> list[float]:
        low, high = self.values
        if self.log:
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            for units in ((1,), (1, 2, 5)):
                found = [
                    tick for power in powers for unit in units if low <= (tick := unit * 10.0**power) <= high
                ]
                if len(found) >= 3:
                    return found[:: -(-len(found) // 8)]
        return round_ticks(low, high, 6)


def _runs(values: Floats) -> list[slice]:
    """Return the ranges of values between gaps."""
    known = np.concatenate([[False], ~np.isnan(values), [False]])
    edges = np.flatnonzero(known[1:] != known[:-1])
    return [slice(int(start), int(stop)) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def _path(points: Sequence[tuple[float, float]], *, close: bool = False) -> str:
    """Return points as a path or, with `close`, as the end of one that is a closed shape."""
    return ("L" if close else "M") + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + ("Z" if close else "")


def _notes(curves: Sequence[Curve], look: Look) -> Iterator[str]:
    """Yield lines about what the curves are, and what they lack."""
    if look.smooth_steps > 1:
        yield f"each point: mean of the last {look.smooth_steps:,} steps"
    most = max(len(each.steps) for each in curves)
    if most > _MOST_POINTS:
        yield f"drawn: means of {-(-most // _MOST_POINTS):,} steps, over a band from smallest to largest"
    for each in curves:
        what = f"{each.column} that is finite{' and above 0' if look.log else ''}"
        if each.is_empty:
            yield f"{each.job}: no {each.column} is known"
        elif len(each.gaps):
            yield f"{each.job}: {len(each.gaps):,} of {len(each.steps):,} steps without a {what}"
