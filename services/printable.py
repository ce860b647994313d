"""One printable line of bounded length from any text, for errors, logs, metrics and terminals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LINE_CHARACTERS = 300
"""Longest line that people are shown about something refused, in characters."""
FAILURE_CHARACTERS = 1000
"""Longest line about a failure, in characters: it may list several causes with their remedies."""
PATH_CHARACTERS = 120
"""Longest part of such a line that quotes a path, in characters."""

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")
"""Powers of 1000, as links and disks are sold."""
_ELLIPSIS = "..."
_WORD_CHARACTERS = 40
"""A word is not cut below this length, in characters, to make its line fit."""
_LONGEST_WORDS = 4
"""So many words of a line are cut before the line itself is: a line quotes few paths."""
_MOST_NAMES = 3
"""Number of names that are given of all that have one reason."""
_EXAMINED_TIMES = 20
"""A text is examined word by word up to so many times its limit."""


def printable(text: str, limit: int = LINE_CHARACTERS) -> str:
    """Return a text as one line that a terminal shows unchanged.

    Control characters, line ends, escape sequences, bidirectional overrides and lone surrogates are escaped as in
    Python's `ascii`. If it is too long, its longest words are cut in their middle, which are mostly paths, and then the
    text itself: errors begin with what is wrong and end with how to fix it, and paths end with the file's name. The
    work depends on the limit, not on the text's length.

    Args:
        text: any text, also one from a peer.
        limit: longest result, in characters; at least 4.
    """
    if len(text) <= limit and text.isprintable():
        return text
    if len(text) > _EXAMINED_TIMES * limit:  # escaping lengthens, so no more than this can be shown
        return _cut(escape(text[:limit]), escape(text[-limit:]), limit)
    shortened = _shorten_words(escape(text), limit)
    return shortened if len(shortened) <= limit else _cut(shortened, shortened, limit)


def printable_path(path: object) -> str:
    """Return a path as a part of a line: printable, and at most `PATH_CHARACTERS` long."""
    return printable(str(path), PATH_CHARACTERS)


def one_line(text: str, limit: int = LINE_CHARACTERS) -> str:
    """Return a text of several lines, such as a library's error, as one printable line without runs of white space."""
    half = _EXAMINED_TIMES * limit // 2
    if len(text) > 2 * half:
        text = f"{text[:half]} {_ELLIPSIS} {text[-half:]}"
    return printable(" ".join(text.split()), limit)


def join_reasons(reasons: Mapping[str, str]) -> str:
    """Return names with their reasons in brackets, as in "a and b (gone), c (building)"; see `group_by_reason`."""
    return ", ".join(f"{names} ({reason})" for names, reason in group_by_reason(reasons))


def group_by_reason(reasons: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each reason once, after the names that have it, as in "a, b and 3 others".

    Args:
        reasons: reason by name.
    """
    names_of: dict[str, list[str]] = {}
    for name, reason in sorted(reasons.items()):
        names_of.setdefault(reason, []).append(name)
    return [(join_names(names), reason) for reason, names in names_of.items()]


def join_names(names: Sequence[str]) -> str:
    """Return some names: all of them up to three, else two and how many others."""
    if len(names) > _MOST_NAMES:
        names = [*names[: _MOST_NAMES - 1], f"{len(names) - _MOST_NAMES + 1} others"]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number and what it counts, as in "1 mesh" and "2 meshes".

    Args:
        count: the number.
        noun: noun in the singular.
        plural: its plural; by default with an s.
    """
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def format_bytes(size_bytes: int) -> str:
    """Return a size with one decimal, in the unit in which it is at least 1."""
    if size_bytes < 1000:
        return f"{size_bytes} bytes"
    size, power = float(size_bytes), 0
    while size >= 999.95 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {_UNITS[power]}"


def escape(text: str) -> str:
    """Return a text of any length with each character escaped that is not printable, line ends too."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _shorten_words(text: str, limit: int) -> str:
    for word in sorted(set(text.split(" ")), key=len, reverse=True)[:_LONGEST_WORDS]:
        surplus = len(text) - limit
        if surplus <= 0 or len(word) <= _WORD_CHARACTERS:
            break
        text = text.replace(word, _cut(word, word, max(_WORD_CHARACTERS, len(word) - surplus)))
    return text


def _cut(head: str, tail: str, limit: int) -> str:
    kept = limit - len(_ELLIPSIS)
    return head[: kept - kept // 3] + _ELLIPSIS + (tail[-(kept // 3) :] if kept // 3 else "")
