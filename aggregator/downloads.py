"""Downloads that are under way, their largest number, and the bandwidth that they share."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aggregator.stored_checkpoints import StoredCheckpoints
from protos.files_pb2 import FilePiece, ReadFileRequest
from services.caps import MB, Cap, CapReached
from services.files.service import ReadPiece
from services.protocol.file_refs import MAX_PIECE_BYTES
from services.token_bucket import TokenBucket
from services.transport.access.enforcement import current_caller

MOST_DOWNLOADS = 32
"""Largest number of downloads at the same time. Each has a piece in memory."""
LONGEST_SHARE_SECONDS = 10.0
"""Longest time in which each download gets a piece; half of the time that `tiermesh download` waits for one."""


class Downloads:
    """All downloads from an aggregator.

    Args:
        mb_per_second: the largest bandwidth of all of them, in MB a second; None for no cap.
        count_cap_reached: counts downloads that are refused, and those that wait for their share of the bandwidth.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        mb_per_second: int | None,
        count_cap_reached: Callable[[Cap], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count_cap_reached = count_cap_reached
        self._clock = clock
        self._under_way: Counter[str] = Counter()
        self._most = MOST_DOWNLOADS
        self._why = ""
        self._bucket: TokenBucket | None = None
        self._turn = asyncio.Lock()  # first come, first served, so each download gets a piece in turn
        if mb_per_second is not None:
            rate = mb_per_second * MB
            self._bucket = TokenBucket(rate, max(rate, MAX_PIECE_BYTES))
            self._most = min(MOST_DOWNLOADS, int(rate * LONGEST_SHARE_SECONDS / MAX_PIECE_BYTES))
            self._why = f" with --max-download-mb-per-second {mb_per_second} of the aggregator"

    @contextmanager
    def begin(self, person: str) -> Iterator[Download]:
        """Count a download while the block runs.

        Args:
            person: who downloads; empty without security, where callers have no names.

        Raises:
            CapReached: there are too many, or this person has too many.
        """
        self._check_caps(person)
        self._under_way[person] += 1
        try:
            yield Download(self)
        finally:
            self._under_way -= Counter((person,))  # a person who has none left is forgotten

    @contextmanager
    def open_reader(self, stored: StoredCheckpoints) -> Iterator[ReadPiece]:
        """Give one download of a checkpoint's file what reads it, within the caps (CapReached)."""
        with self.begin(current_caller().person) as download:

            async def read_piece(request: ReadFileRequest) -> FilePiece:
                piece = await stored.read_piece(request)
                await download.take(len(piece.data))
                return piece

            yield read_piece

    def _check_caps(self, person: str) -> None:
        total, own = self._under_way.total(), self._under_way[person]
        most_own = (self._most + 1) // 2  # one person leaves room for the others
        if total >= self._most:
            cap, text = (
                Cap.DOWNLOADS,
                f"downloads: {total} are under way, expected at most {self._most}{self._why}",
            )
        elif person and own >= most_own:
            cap = Cap.DOWNLOADS_PER_PERSON
            text = f"person {person}: has {own} downloads under way, expected at most {most_own}{self._why}"
        else:
            return
        self._count_cap_reached(cap)
        raise CapReached(cap, f"{text}; try again when one has ended")

    async def take(self, size: int) -> bool:
        """Wait until so many bytes may be sent; return whether there was a wait. To be cancelled takes nothing."""
        if self._bucket is None:
            return False
        async with self._turn:
            seconds = self._bucket.seconds_until(size, self._clock())
            if seconds:
                await asyncio.sleep(seconds)
            self._bucket.take(size, self._clock())
            return seconds > 0

    def count_slowed(self) -> None:
        """Count a download that waits for its share of the bandwidth."""
        self._count_cap_reached(Cap.DOWNLOAD_BANDWIDTH)


class Download:
    """A download that is under way.

    Args:
        downloads: all of them.
    """

    def __init__(self, downloads: Downloads) -> None:
        self._downloads = downloads
        self._slowed = False

    async def take(self, size: int) -> None:
        """Wait until so many bytes may be sent."""
        if await self._downloads.take(size) and not self._slowed:
            self._slowed = True
            self._downloads.count_slowed()
