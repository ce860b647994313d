"""Form of the names of daemons, of people, and of what certificates and tokens are made out to.

A name appears in logs, lists, labels of metrics and names of files. So it has plain letters only, of which no two look
alike, and no space at its ends.
"""

from __future__ import annotations

import re

from services.errors import Refused

NAME_CHARACTERS = 64
"""Length of the longest name."""
NAME_PATTERN = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@-]{{0,{NAME_CHARACTERS - 1}}}")
_NUMBERS = re.compile(r"([0-9]+)")
NAME_FORM = "1 to 64 letters, digits, '.', '_', '@' or '-', and a letter or digit first"


def is_name(text: str) -> bool:
    """Return whether a text has the form of a name."""
    return NAME_PATTERN.fullmatch(text) is not None


def check_name(what: str, name: str) -> str:
    """Return a name that has the right form.

    Raises:
        Refused: it has other characters, or is too long.
    """
    if not is_name(name):
        raise Refused(f"{what} {name[:80]!r}: expected {NAME_FORM}")
    return name


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which `box-2` comes before `box-10`."""
    parts = _NUMBERS.split(name)
    return [(int(each) if each.isdecimal() else 0, each) for each in parts]
