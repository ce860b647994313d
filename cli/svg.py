"""Elements of SVG, for the pictures that commands draw, and round numbers for their axes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

from services.printable import printable

_LABEL_CHARACTERS = 200


def element(name: str, inner: str = "", **attributes: str | float) -> str:
    """Return an element.

    Args:
        name: name of the element.
        inner: its content, which is markup.
        attributes: its attributes; `stroke_width` stands for `stroke-width`, `class_` for `class`.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_spell(value)}"' for key, value in attributes.items()
    )
    return f"<{name}{written}>{inner}</{name}>" if inner else f"<{name}{written}/>"


def label(x: float, y: float, text: str, **attributes: str | float) -> str:
    """Return a text at a place. It may have any characters, since names of jobs and daemons do."""
    return element("text", plain(text), x=x, y=y, **attributes)


def plain(text: str) -> str:
    """Return text as the content of an element: XML allows no control characters, even if they are escaped."""
    return escape(printable(text, _LABEL_CHARACTERS))


def document(width: float, height: float, elements: Iterable[str], **attributes: str | float) -> str:
    """Return a picture that has these elements, one a line."""
    inner = "\n".join(["", *elements, ""])
    box = f"0 0 {_spell(width)} {_spell(height)}"
    picture = element(
        "svg",
        inner,
        xmlns="http://www.w3.org/2000/svg",
        width=width,
        height=height,
        viewBox=box,
        **attributes,
    )
    return f"{picture}\n"


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers from `low` to `high`, in steps of 1, 2 or 5 times a power of ten.

    Args:
        low: smallest number; the ticks begin with the first round one from there.
        high: largest number, above `low`.
        most: number of steps that fit at most.
    """
    power = math.floor(math.log10((high - low) / most))
    step = next(
        size for unit in (1, 2, 5, 10) if (size := unit * 10.0**power) * most >= (high - low) * (1 - 1e-9)
    )
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _spell(value: str | float) -> str:
    if isinstance(value, str):
        return escape(value)
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
