"""Descriptors and mappings of Tiermesh's shared memory in this process."""

from __future__ import annotations

from pathlib import Path

_NAME = "/memfd:tiermesh"


def count_descriptors() -> int:
    """Return how many descriptors of such memory are open. Threads of other tests may open and close others."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            found += str(each.readlink()).startswith(_NAME)
        except FileNotFoundError:
            continue  # closed meanwhile
    return found


def count_mappings() -> int:
    """Return how many mappings of such memory there are."""
    return Path("/proc/self/maps").read_text().count(_NAME)


def count_shared_memory() -> tuple[int, int]:
    """Return the numbers of descriptors and mappings."""
    return count_descriptors(), count_mappings()
