"""Rows without avoided links: what is tried, and in which order."""

from __future__ import annotations

import itertools
import random

import pytest

from aggregator.core.rows.broken_links import Link
from aggregator.core.rows.detours import count_avoided, form_linked_rows
from aggregator.core.rows.forming import Candidate, Seats, find_gaps


def form(
    stages: int, workers: int, *avoided: tuple[int, int], most_stages: int = 9, former: Seats = ()
) -> str:
    """Return the rows of workers 1, 2, 3 and so on, as their workers by stage."""
    candidates = [Candidate(each, most_stages) for each in range(1, workers + 1)]
    rows = form_linked_rows(stages, candidates, [former], [Link(*each) for each in avoided], shares=True)
    return " | ".join(
        " ".join(str(seat.worker) for seat in row for _ in range(seat.stages.count)) for row in rows
    )


BOTH_WAYS = ((1, 2), (2, 1))


@pytest.mark.parametrize(
    ("stages", "workers", "avoided", "expected"),
    [
        (2, 2, [], "1 2"),
        (2, 2, [(2, 1)], "2 1"),
        (2, 3, [(2, 1)], "3 2"),
        (2, 2, BOTH_WAYS, "1 1"),
        (3, 3, [(2, 1)], "3 2 1"),  # worker 1 opens all of its links
        (4, 4, BOTH_WAYS, "4 2 3 1"),
        (3, 3, BOTH_WAYS, "1 3 3"),
        (2, 4, [(2, 1)], "2 1 | 3 4"),
    ],
)
def test_rows_without_avoided_links(
    stages: int, workers: int, avoided: list[tuple[int, int]], expected: str
) -> None:
    found = form(stages, workers, *avoided)
    assert found == expected


def test_a_row_that_has_no_detour_stays_as_it_is() -> None:
    assert form(2, 2, *BOTH_WAYS, most_stages=1) == "1 2"


@pytest.mark.parametrize("seed", range(200))
def test_rows_are_whole_and_stay_once_they_are_formed(seed: int) -> None:
    draw = random.Random(seed)
    stages, workers = draw.randint(1, 5), draw.randint(1, 7)
    candidates = [Candidate(each, draw.randint(1, stages)) for each in range(workers)]
    pairs = list(itertools.permutations(range(workers), 2))
    avoided = {Link(*each) for each in draw.sample(pairs, draw.randint(0, len(pairs)))}
    rows = form_linked_rows(stages, candidates, [], avoided, shares=True)
    for _ in rows:  # one row may take the worker that another one has given up
        rows = form_linked_rows(stages, candidates, rows, avoided, shares=True)
    assert form_linked_rows(stages, candidates, rows, avoided, shares=True) == rows
    seated = [seat.worker for row in rows for seat in row]
    assert len(set(seated)) == len(seated)
    plain = form_linked_rows(stages, candidates, [], (), shares=True)
    assert len(rows) == len(plain)
    for row, other in zip(rows, plain, strict=True):
        assert find_gaps(stages, row) == find_gaps(stages, other)
        assert count_avoided(row, avoided) <= count_avoided(other, avoided)
