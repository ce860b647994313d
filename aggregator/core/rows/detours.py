"""Rows without links that are avoided: another worker at one end, another order of the workers, or fewer workers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from aggregator.core.rows.broken_links import Link, links_of
from aggregator.core.rows.forming import Candidate, Seats, find_gaps, form_rows, without_lost


def form_linked_rows(
    stages: int,
    candidates: Sequence[Candidate],
    former: Sequence[Seats],
    avoided: Collection[Link],
    *,
    shares: bool,
) -> list[Seats]:
    """Divide the stages of a pipeline among workers, so that no row has an avoided link, if that can be done.

    A row that was formed without one is kept. Else a row first gets a spare, or exchanges two workers. If neither helps
    a row that is alone, its stages are shared without one of its workers. If that does not help either, it stays as
    `form_rows` says.

    Args:
        stages: number of stages.
        candidates: the workers, the preferred ones first.
        former: the rows so far, of which workers may be gone.
        avoided: links that are not to be in a row.
        shares: whether a worker may be given several stages.
    """
    rows = form_rows(stages, candidates, former, shares=shares)
    if not any(count_avoided(row, avoided) for row in rows):
        return rows
    known = {each.worker: each for each in candidates}
    for row in former if len(rows) == 1 else ():
        if without_lost(row, known) == row and not find_gaps(stages, row) and not count_avoided(row, avoided):
            return [row]
    for index, row in enumerate(rows):
        seated = {seat.worker for each in rows for seat in each}
        spares = [each for each in candidates if each.worker not in seated]
        rows[index] = _rearrange(row, candidates, spares, avoided)
    if len(rows) > 1 or not shares or not rows or not count_avoided(rows[0], avoided):
        return rows
    return _leave_out(stages, candidates, former, avoided, rows[0]) or rows


def count_avoided(row: Seats, avoided: Collection[Link]) -> int:
    """Return how many links of a row are avoided."""
    return sum(link in avoided for link in links_of(row))


def _rearrange(
    row: Seats, candidates: Sequence[Candidate], spares: Sequence[Candidate], avoided: Collection[Link]
) -> Seats:
    """Return a row with fewer avoided links, if there is one; else the row itself."""
    most_stages = {each.worker: each.most_stages for each in candidates}
    unreachable = {link.opened for link in avoided}

    def cost(seats: Seats) -> tuple[int, int]:
        """Avoided links, and others to workers that could not be reached by one of their neighbours."""
        return count_avoided(seats, avoided), sum(link.opened in unreachable for link in links_of(seats))

    best = row
    while count_avoided(best, avoided):
        unused = [each for each in spares if all(each.worker != seat.worker for seat in best)]
        fitting = [
            each
            for each in _changes(best, unused)
            if all(seat.stages.count <= most_stages.get(seat.worker, 0) for seat in each)
        ]
        changed = min(fitting, key=cost, default=best)  # the first one of the cheapest
        if count_avoided(changed, avoided) >= count_avoided(best, avoided):
            return row
        best = changed
    return best


def _changes(row: Seats, spares: Sequence[Candidate]) -> Iterator[Seats]:
    """Return the rows with a spare in a worker's place, which builds, and with two workers exchanged, which both do."""
    for index, seat in enumerate(row):
        for spare in spares:
            yield (*row[:index], seat._replace(worker=spare.worker), *row[index + 1 :])
    for index, seat in enumerate(row):
        for place in range(index + 1, len(row)):
            changed = list(row)
            changed[index] = seat._replace(worker=row[place].worker)
            changed[place] = row[place]._replace(worker=seat.worker)
            yield tuple(changed)


def _leave_out(
    stages: int,
    candidates: Sequence[Candidate],
    former: Iterable[Seats],
    avoided: Collection[Link],
    row: Seats,
) -> list[Seats] | None:
    """Return a row without workers that have most avoided links; None if the others can't have all stages."""
    left, kept = list(candidates), list(former)
    while len(left) > 1:
        out = _most_avoided(row, left, avoided)
        left = [each for each in left if each.worker != out]
        found = form_rows(stages, left, kept, shares=True)
        row = found[0] if found else ()
        if not row or find_gaps(stages, row):
            return None
        if not count_avoided(row, avoided):
            return [row]
    return None


def _most_avoided(row: Seats, candidates: Sequence[Candidate], avoided: Collection[Link]) -> int:
    """Return the worker with most avoided links in a row; of several, the one that is preferred least."""
    links = [link for link in links_of(row) if link in avoided]
    ends = [each.worker for each in candidates if any(each.worker in link for link in links)]
    return max(reversed(ends), key=lambda worker: sum(worker in link for link in links))
