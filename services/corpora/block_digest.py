"""SHA-256 of a stream of bytes: of all of it, and of each block."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final

BLOCK_BYTES: Final = 1048576
"""Size of a block, the unit of verification: a window of 2 KiB costs at most a millisecond of hashing at its first use,
and the hashes of 100 GB take 3 MB."""


class BlockDigest:
    """Hashes of a stream; a context manager that ends its thread.

    The hash of the whole stream is computed on a thread, beside those of its blocks: hashing releases the GIL.

    Attributes:
        size_bytes: number of bytes so far.
    """

    def __init__(self) -> None:
        self._whole = hashlib.sha256()
        self._block = hashlib.sha256()
        self._blocks: list[str] = []
        self._thread = ThreadPoolExecutor(1, "sha256")
        self._pending: Future[None] | None = None
        self.size_bytes = 0

    def __enter__(self) -> BlockDigest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()

    def update(self, data: bytes) -> None:
        """Append bytes."""
        if self._pending is not None:
            self._pending.result()  # so at most one piece waits
        self._pending = self._thread.submit(self._whole.update, data)
        view = memoryview(data)
        while view:
            room = BLOCK_BYTES - self.size_bytes % BLOCK_BYTES
            self._block.update(view[:room])
            self.size_bytes += len(view[:room])
            view = view[room:]
            if self.size_bytes % BLOCK_BYTES == 0:
                self._end_block()

    def finish(self) -> tuple[str, str]:
        """Return the SHA-256 of the stream, and those of its blocks in order, as one hexadecimal text each."""
        if self._pending is not None:
            self._pending.result()
        if self.size_bytes % BLOCK_BYTES:
            self._end_block()
        return self._whole.hexdigest(), "".join(self._blocks)

    def _end_block(self) -> None:
        self._blocks.append(self._block.hexdigest())
        self._block = hashlib.sha256()
