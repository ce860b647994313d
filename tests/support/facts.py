"""Comparison of error texts by their facts (fields, values, numbers), whatever the words between them."""

from __future__ import annotations


def has_facts(text: str, facts: str) -> bool:
    """Return whether the parts of `facts`, separated by ` ... `, occur in `text` in this order."""
    position = 0
    for part in facts.split(" ... "):
        position = text.find(part, position)
        if position < 0:
            return False
        position += len(part)
    return True
