"""Which links between workers are avoided after they have failed, and until when."""

from __future__ import annotations

import pytest

from aggregator.core.rows.broken_links import BrokenLinks, Link, links_of
from aggregator.core.rows.forming import Seat
from services.pipeline.split import StageRun
from services.timeouts import STANDARD_TIMEOUTS

LINK = Link(opener=2, opened=1)


def row(*workers: int) -> tuple[Seat, ...]:
    return tuple(Seat(worker, StageRun(stage, 1)) for stage, worker in enumerate(workers))


@pytest.mark.parametrize(
    ("workers", "links"),
    [((1,), []), ((1, 2), [(2, 1)]), ((3, 1, 2), [(1, 3), (2, 1), (2, 3)])],
)
def test_later_stages_open_links_and_a_row_is_a_ring(
    workers: tuple[int, ...], links: list[tuple[int, int]]
) -> None:
    assert list(links_of(row(*workers))) == links


def test_a_pair_is_avoided_twice_as_long_each_time_up_to_a_limit() -> None:
    links, now, pauses = BrokenLinks(STANDARD_TIMEOUTS), 0.0, []
    for _ in range(9):
        pair = links.note(LINK, "why", now)
        assert links.avoided(pair.until_seconds - 0.1) == {LINK}
        assert links.avoided(pair.until_seconds) == set()
        pauses.append(pair.until_seconds - now)
        now = pair.until_seconds
    assert pauses == [60, 120, 240, 480, 960, 1800, 1800, 1800, 1800]


def test_both_ways_around_are_tried_again_together() -> None:
    links, turned = BrokenLinks(STANDARD_TIMEOUTS), Link(1, 2)
    links.note(LINK, "why", 0.0)
    assert links.avoided(1.0) == {LINK}, "the other way around may work"
    pair = links.note(turned, "why not", 30.0)
    assert (links.avoided(31.0), pair.until_seconds) == ({LINK, turned}, 150.0)
    assert (links.why_avoided(1, 31.0), links.why_avoided(3, 31.0)) == ("why not", "")


def test_links_that_work_and_workers_that_are_gone_are_forgotten() -> None:
    links = BrokenLinks(STANDARD_TIMEOUTS)
    links.note(LINK, "why", 0.0)
    links.note(Link(3, 2), "why", 0.0)
    links.note_works(row(1, 2))
    assert links.avoided(1.0) == {Link(3, 2)}
    assert [pair.reason for pair in links.find(row(2, 3))] == ["why"]
    links.keep_only([1, 2])
    assert links.avoided(1.0) == set()
