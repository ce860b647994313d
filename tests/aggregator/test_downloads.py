"""Tests of downloads that share a bandwidth, on an event loop whose time passes only while everything waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.downloads import LONGEST_SHARE_SECONDS, MOST_DOWNLOADS, Download, Downloads
from services.caps import MB, Cap, CapReached
from services.protocol.file_refs import MAX_PIECE_BYTES
from tests.support.skipping_loop import SkippingLoop, SkippingSelector


class World:
    """Downloads with a cap, and the time.

    Args:
        mb_per_second: the cap.
    """

    def __init__(self, mb_per_second: int | None) -> None:
        self._mb_per_second = mb_per_second
        self.selector = SkippingSelector()
        self.loop = SkippingLoop(self.selector)
        self.reached: list[Cap] = []
        self.sent: list[tuple[float, str, int]] = []
        self.downloads: Downloads

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        """Run a scenario to its end."""

        async def begin() -> None:
            self.downloads = Downloads(self._mb_per_second, self.reached.append, self.loop.time)
            await scenario

        try:
            self.loop.run_until_complete(begin())
        finally:
            self.loop.close()

    async def read(self, name: str, sizes: list[int], pause_seconds: float = 0.0) -> None:
        """Download pieces of these sizes, with a pause after each."""
        with self.downloads.begin(name) as download:
            for size in sizes:
                await download.take(size)
                self.sent.append((self.loop.time(), name, size))
                await asyncio.sleep(pause_seconds)


@settings(max_examples=50, deadline=None)
@given(
    readers=st.lists(
        st.tuples(
            st.lists(st.integers(0, MAX_PIECE_BYTES), min_size=1, max_size=8),
            st.floats(0, 3),
            st.none() | st.floats(0, 6),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_all_downloads_together_stay_within_the_rate(
    readers: list[tuple[list[int], float, float | None]],
) -> None:
    world = World(mb_per_second=2)

    async def scenario() -> None:
        tasks = []
        for number, (sizes, pause, cancelled_after) in enumerate(readers):
            task = asyncio.ensure_future(world.read(str(number), sizes, pause))
            if cancelled_after is not None:
                world.loop.call_later(cancelled_after, task.cancel)
            tasks.append(task)
        await asyncio.gather(*tasks, return_exceptions=True)
        with ExitStack() as stack:  # nobody holds a place
            for _ in range(int(2 * MB * LONGEST_SHARE_SECONDS / MAX_PIECE_BYTES)):
                stack.enter_context(world.downloads.begin(""))

    world.run(scenario())
    rate, burst = 2 * MB, 2 * MB
    for first, (start, _, _) in enumerate(world.sent):
        total = 0
        for when, _, size in world.sent[first:]:
            total += size
            assert total <= rate * (when - start) + burst + 1


def test_downloads_get_the_same_share_and_nothing_spins() -> None:
    world = World(mb_per_second=2)
    count = 40

    async def scenario() -> None:
        await asyncio.gather(*(world.read(name, [MAX_PIECE_BYTES] * count) for name in "abc"))

    world.run(scenario())
    for name in "abc":
        places = [place for place, (_, whose, _) in enumerate(world.sent) if whose == name]
        assert all(later - earlier == 3 for earlier, later in pairwise(places))
    seconds = (3 * count * MAX_PIECE_BYTES - 2 * MB) / (2 * MB)
    assert world.loop.time() == pytest.approx(seconds, rel=1e-6)
    assert world.selector.waits <= 3 * count, "one wait for each piece at most"
    assert world.reached == [Cap.DOWNLOAD_BANDWIDTH] * 3, "each download is counted once"


def test_a_slow_reader_takes_only_what_it_reads() -> None:
    world = World(mb_per_second=2)

    async def scenario() -> None:
        slow = asyncio.ensure_future(world.read("slow", [MAX_PIECE_BYTES] * 3, pause_seconds=1000.0))
        await asyncio.sleep(10)
        await world.read("fast", [MAX_PIECE_BYTES] * 20)
        assert world.loop.time() == pytest.approx(10 + (20 * MAX_PIECE_BYTES - 2 * MB) / (2 * MB), rel=1e-6)
        slow.cancel()

    world.run(scenario())


def test_a_cancelled_download_leaves_its_share_to_the_others() -> None:
    world = World(mb_per_second=1)

    async def scenario() -> None:
        waiting = [asyncio.ensure_future(world.read(name, [MAX_PIECE_BYTES] * 100)) for name in "abc"]
        await asyncio.sleep(0.5)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        began, sent = world.loop.time(), len(world.sent)
        await world.read("d", [MAX_PIECE_BYTES] * 4)
        assert world.loop.time() - began <= (4 + sent) * MAX_PIECE_BYTES / MB - 0.5

    world.run(scenario())


def test_too_many_downloads_are_refused_by_name() -> None:
    for mb_per_second, most, why in (
        (None, MOST_DOWNLOADS, ""),
        (1, 9, " with --max-download-mb-per-second 1 of the aggregator"),
        (100_000, MOST_DOWNLOADS, " with --max-download-mb-per-second 100000 of the aggregator"),
    ):
        world = World(mb_per_second)

        async def scenario(world: World = world, most: int = most, why: str = why) -> None:
            with ExitStack() as stack:
                begun = [stack.enter_context(world.downloads.begin("")) for _ in range(most)]
                assert all(isinstance(each, Download) for each in begun)
                with pytest.raises(CapReached) as refused, world.downloads.begin(""):
                    raise AssertionError("it began")
                assert str(refused.value) == (
                    f"downloads: {most} are under way, expected at most {most}{why}; try again when one has ended"
                )
            with world.downloads.begin(""):
                pass

        world.run(scenario())
        assert world.reached == [Cap.DOWNLOADS]


def test_one_person_leaves_half_of_the_places_to_others() -> None:
    for mb_per_second, half, why in (
        (None, MOST_DOWNLOADS // 2, ""),
        (1, 5, " with --max-download-mb-per-second 1 of the aggregator"),
    ):
        world = World(mb_per_second)

        async def scenario(world: World = world, half: int = half, why: str = why) -> None:
            with ExitStack() as stack:
                for _ in range(half):
                    stack.enter_context(world.downloads.begin("ann"))
                with pytest.raises(CapReached) as refused, world.downloads.begin("ann"):
                    raise AssertionError("it began")
                assert str(refused.value) == (
                    f"person ann: has {half} downloads under way, expected at most {half}{why}; try again when one has "
                    "ended"
                )
                with world.downloads.begin("bob"):
                    pass
            with world.downloads.begin("ann"):
                pass

        world.run(scenario())
        assert world.reached == [Cap.DOWNLOADS_PER_PERSON]


def test_without_a_cap_nothing_waits() -> None:
    world = World(None)
    world.run(world.read("a", [MAX_PIECE_BYTES] * 100))
    assert world.loop.time() == 0.0 and world.reached == []
