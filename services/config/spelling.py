"""Known names that are spelled like an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST_WORD = 100
_SIMILARITY = 0.6
_LETTERS_PER_EDIT = 6


def nearest_names(word: str, known: Iterable[str]) -> list[str]:
    """Return the known names that an unknown one may stand for, sorted; empty if none is similar.

    All names with the fewest edits are returned: beta3 may stand for beta1 or beta2. So a name with one wrong letter is
    always found. One edit is allowed, and one more for every six letters. Without such a name, the result is the most
    similar one, as `difflib` counts.
    """
    folded = word[:_LONGEST_WORD].lower()
    by_folded = {name.lower(): name for name in known}
    most = 1 + len(folded) // _LETTERS_PER_EDIT
    edits = {name: count_edits(folded, name, most) for name in by_folded}
    fewest = min(edits.values(), default=most + 1)
    if fewest <= most:
        return sorted(by_folded[name] for name, count in edits.items() if count == fewest)
    similar = difflib.get_close_matches(folded, by_folded, n=1, cutoff=_SIMILARITY)
    return [by_folded[name] for name in similar]


def nearest_name(word: str, known: Iterable[str]) -> str | None:
    """Return one of `nearest_names`, or None if there is none."""
    return next(iter(nearest_names(word, known)), None)


def most_similar_name(word: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name, however different it is; None if nothing is known."""
    names = sorted(known)
    similar = difflib.get_close_matches(word[:_LONGEST_WORD], names, n=1, cutoff=0.0)
    return next(iter(similar), None)


def count_edits(first: str, second: str, most: int) -> int:
    """Return the fewest edits between two words (optimal string alignment), or `most` + 1 if there are more.

    An edit inserts, removes or changes a letter, or swaps two neighbours.
    """
    if abs(len(first) - len(second)) > most:
        return most + 1
    older: list[int] = []
    above = list(range(len(second) + 1))
    for row, letter in enumerate(first, start=1):
        current = [row]
        for column, other in enumerate(second, start=1):
            edits = min(above[column] + 1, current[-1] + 1, above[column - 1] + (letter != other))
            swapped = row > 1 and column > 1 and letter == second[column - 2] and first[row - 2] == other
            current.append(min(edits, older[column - 2] + 1) if swapped else edits)
        older, above = above, current
        if min(older) > most and min(above) > most:  # later rows are no smaller
            return most + 1
    return min(above[-1], most + 1)
