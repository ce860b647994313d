"""A small disk that a test can fill, empty and take away: a tmpfs of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted tmpfs.

    Args:
        path: the folder it is mounted on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, free_bytes: int = 0) -> None:
        """Fill the disk until no page is free, or only as many bytes."""
        with suppress(OSError), self._filler.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        if free_bytes:
            with self._filler.open("r+b") as file:
                file.truncate(max(0, self._filler.stat().st_size - free_bytes))

    def empty(self) -> None:
        """Remove what `fill` has written."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path, size: str = "4m") -> Iterator[SmallDisk]:
    """Mount a tmpfs of a size such as `4m` while the block runs; skip the test where that is not allowed."""
    path.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs can't be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
