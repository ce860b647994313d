"""The order of names in which numbers count."""

from __future__ import annotations

from services.names import natural_order


def test_numbers_in_names_are_in_order() -> None:
    names = [f"rank{rank}-mesh{rank}@box-{rank // 4 + 1}" for rank in range(16)]
    assert sorted(sorted(names), key=natural_order) == names != sorted(names)
    assert sorted(["b", "a10", "a9", "7", "a"], key=natural_order) == ["7", "a", "a9", "a10", "b"]
