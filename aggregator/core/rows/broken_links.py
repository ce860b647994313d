"""Links between workers that have failed: which are avoided, and until when.

A row whose link fails again and again would be formed without end. So a pair of workers whose link has failed is
avoided, each time twice as long, up to a limit: after it at the latest a job notices that a link works again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from aggregator.core.rows.forming import Seats
from services.timeouts import Timeouts


class Link(NamedTuple):
    """A link between two neighbours of a row. It may work the other way around only.

    Attributes:
        opener: session of the worker with the later stages, which opens streams.
        opened: session of the worker at whose address it opens them.
    """

    opener: int
    opened: int

    @property
    def pair(self) -> frozenset[int]:
        """Both workers."""
        return frozenset(self)


def links_of(seats: Seats) -> Iterator[Link]:
    """Return the links of a row. Its first and its last worker are neighbours too."""
    workers = [seat.worker for seat in seats]
    for opened, opener in pairwise(workers):
        yield Link(opener, opened)
    if len(workers) > 2:
        yield Link(workers[-1], workers[0])


@dataclass
class BrokenPair:
    """Two workers whose link has failed, and has not worked since.

    Attributes:
        links: those that have failed, one way around or both.
        failures: number of failures.
        reason: why it failed last, as one line.
        until_seconds: when it may be tried again.
    """

    links: set[Link] = field(default_factory=set)
    failures: int = 0
    reason: str = ""
    until_seconds: float = 0.0

    @property
    def is_telling(self) -> bool:
        """Whether a line of the log is due: after 1, 2, 4, 8 failures and so on, as they may go on for weeks."""
        return self.failures & (self.failures - 1) == 0


class BrokenLinks:
    """The links of a job's workers that have failed.

    Args:
        timeouts: the first pause is twice `deaf`, after which a failure is noticed; the longest is `unfit`.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._first_seconds, self._longest_seconds = 2 * timeouts.deaf, timeouts.unfit
        self._pairs: dict[frozenset[int], BrokenPair] = {}

    def note(self, link: Link, reason: str, now: float, *, both_ways: bool = False) -> BrokenPair:
        """Note that a link has failed, one way or both ways around; return what is known of its pair."""
        pair = self._pairs.setdefault(link.pair, BrokenPair())
        pause_seconds = min(self._first_seconds * 2.0 ** min(pair.failures, 16), self._longest_seconds)
        pair.links.update((link, Link(link.opened, link.opener)) if both_ways else (link,))
        pair.failures += 1
        pair.reason, pair.until_seconds = reason, now + pause_seconds
        return pair

    def note_works(self, seats: Seats) -> None:
        """Forget the failures of a row's links, since arrays have passed them."""
        for link in links_of(seats):
            self._pairs.pop(link.pair, None)

    def keep_only(self, sessions: Collection[int]) -> None:
        """Forget the links of all other workers. One that is started again may have another address."""
        for pair in [each for each in self._pairs if not each <= set(sessions)]:
            del self._pairs[pair]

    def avoided(self, now: float) -> frozenset[Link]:
        """Return the links that are not to be tried now."""
        return frozenset(
            link for pair in self._pairs.values() if now < pair.until_seconds for link in pair.links
        )

    def find(self, seats: Seats) -> list[BrokenPair]:
        """Return what is known of the links of a row that have failed, the one to be tried last first."""
        found = [self._pairs[link.pair] for link in links_of(seats) if link.pair in self._pairs]
        return sorted(found, key=lambda pair: -pair.until_seconds)

    def why_avoided(self, session: int, now: float) -> str:
        """Return why a worker may not be beside another one now; empty if no link of it is avoided."""
        pairs = (pair for both, pair in self._pairs.items() if session in both and now < pair.until_seconds)
        return max(pairs, key=lambda pair: pair.failures, default=BrokenPair()).reason
