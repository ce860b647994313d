"""A file whose bytes are in memory, in parts that need not lie together."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from protos.files_pb2 import FileRef


class MemoryFile:
    """A file in memory.

    Args:
        parts: its bytes, one part after the other; writable if the file is to be written.

    Attributes:
        size: number of bytes.
    """

    def __init__(self, parts: Sequence[memoryview | bytes | bytearray]) -> None:
        self._parts = [memoryview(each) for each in parts if len(each)]
        self._stops = list(accumulate(map(len, self._parts)))
        self.size = self._stops[-1] if self._stops else 0

    def parts(self, start: int, size: int) -> Iterator[memoryview]:
        """Yield views of the bytes from `start` on, at most `size` of them."""
        stop = min(start + size, self.size)
        index = bisect_right(self._stops, start)
        while start < stop:
            begin = self._stops[index] - len(self._parts[index])
            part = self._parts[index][start - begin : stop - begin]
            yield part
            start += len(part)
            index += 1

    def read(self, start: int, size: int) -> bytes:
        """Return the bytes from `start` on, at most `size` of them."""
        return b"".join(self.parts(start, size))

    def write(self, start: int, data: bytes | memoryview) -> None:
        """Overwrite the bytes from `start` on."""
        view = memoryview(data)
        for part in self.parts(start, len(view)):
            part[:] = view[: len(part)]
            view = view[len(part) :]

    def make_ref(self) -> FileRef:
        """Return the reference to the file; it reads all bytes."""
        digest = hashlib.sha256()
        for part in self._parts:
            digest.update(part)
        return FileRef(sha256=digest.hexdigest(), size=self.size)
