"""Rows have each stage once, no worker has two seats, and a loss changes as little as it can."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.rows.forming import Candidate, Seat, Seats, find_gaps, form_rows
from services.pipeline.split import StageRun


def rows_of(texts: list[str]) -> list[Seats]:
    """Return rows from texts such as "1:0 2:1-3": worker 1 has stage 0, worker 2 has stages 1 to 3."""
    rows = []
    for text in texts:
        seats = []
        for seat in text.split():
            worker, _, stages = seat.partition(":")
            first, _, last = stages.partition("-")
            seats.append(Seat(int(worker), StageRun(int(first), int(last or first) - int(first) + 1)))
        rows.append(tuple(seats))
    return rows


def texts_of(rows: list[Seats]) -> list[str]:
    """Return rows as such texts."""
    return [
        " ".join(
            f"{worker}:{run.first}" + (f"-{run.stop - 1}" if run.count > 1 else "") for worker, run in seats
        )
        for seats in rows
    ]


def form(stages: int, workers: list[int], former: list[str], **limits: int) -> list[str]:
    """Form rows of workers, whose limits are given as w3=1."""
    candidates = [Candidate(each, limits.get(f"w{each}", stages)) for each in workers]
    return texts_of(form_rows(stages, candidates, rows_of(former), shares=True))


@pytest.mark.parametrize(
    ("stages", "workers", "former", "expected"),
    [
        (3, [], [], []),
        (3, [1, 2, 3], [], ["1:0 2:1 3:2"]),
        (2, [1, 2, 3, 4, 5], [], ["1:0 2:1", "3:0 4:1"]),
        (5, [1, 2], [], ["1:0-2 2:3-4"]),
        (7, [1, 2, 3], [], ["1:0-2 2:3-4 3:5-6"]),
        (3, [1], [], ["1:0-2"]),
        # a loss: a spare, else the rest of a row that is no longer complete, else the neighbours
        (3, [1, 3, 9], ["1:0 2:1 3:2"], ["1:0 9:1 3:2"]),
        (2, [1, 2, 4], ["1:0 2:1", "3:0 4:1"], ["1:0 2:1"]),
        (2, [2, 3, 9], ["1:0 2:1", "3:0 4:1"], ["3:0 2:1"]),
        (3, [1, 3], ["1:0 2:1 3:2"], ["1:0-1 3:2"]),
        (4, [1, 3], ["1:0 2:1-2 3:3"], ["1:0-1 3:2-3"]),
        # further workers relieve those of several stages, then make rows of their own
        (4, [1, 2], ["1:0-3"], ["1:0-1 2:2-3"]),
        (4, [1, 2, 3], ["1:0-1 2:2-3"], ["1:0 3:1 2:2-3"]),
        (2, [1, 2, 3, 4], ["1:0-1"], ["1:0 2:1", "3:0 4:1"]),
    ],
)
def test_who_gets_which_stages(
    stages: int, workers: list[int], former: list[str], expected: list[str]
) -> None:
    assert form(stages, workers, former) == expected


def test_stages_that_do_not_fit_go_to_others_or_lack_a_worker() -> None:
    assert form(4, [1, 2], ["1:0-1 2:2-3"], w1=1) == ["1:0 2:1-3"]
    assert form(4, [2, 1], [], w1=1) == ["2:0-2 1:3"]
    assert form(4, [1, 2], [], w1=1, w2=2) == ["1:0 2:1-2"]
    assert find_gaps(4, rows_of(["1:0 2:1-2"])[0]) == [StageRun(3, 1)]


def test_a_patient_worker_gets_the_stages_that_it_has_built_or_none() -> None:
    first, second = (Candidate(each, 2, built=StageRun(0, 1), patient=True) for each in (1, 2))
    assert texts_of(form_rows(2, [first, second], [], shares=False)) == ["1:0"]
    third = Candidate(3, 2, built=StageRun(1, 1), patient=True)
    assert texts_of(form_rows(2, [first, second, third], rows_of(["1:0"]), shares=False)) == ["1:0 3:1"]
    impatient = Candidate(2, 2, built=StageRun(0, 1))
    assert texts_of(form_rows(2, [first, impatient], rows_of(["1:0"]), shares=False)) == ["1:0 2:1"]


def test_a_worker_gets_the_stages_that_it_has_built() -> None:
    candidates = [Candidate(1, 2), Candidate(2, 2, built=StageRun(0, 1)), Candidate(3, 2)]
    assert texts_of(form_rows(2, candidates, [], shares=True)) == ["2:0 1:1"]


def test_stages_are_shared_only_once_no_more_workers_are_waited_for() -> None:
    candidates = [Candidate(1, 3), Candidate(2, 3)]
    waiting = form_rows(3, candidates, [], shares=False)
    assert texts_of(waiting) == ["1:0 2:1"]
    assert texts_of(form_rows(3, candidates, waiting, shares=True)) == ["1:0 2:1-2"]
    assert texts_of(form_rows(3, [*candidates, Candidate(3, 3)], waiting, shares=False)) == ["1:0 2:1 3:2"]


@st.composite
def formations(draw: st.DrawFn) -> tuple[int, list[Candidate], list[Seats]]:
    """Draw stages, workers, and the rows that are left of a former formation after some were lost and others came."""
    stages = draw(st.integers(1, 7))
    rows: list[Seats] = []
    known: list[Candidate] = []
    for _ in range(draw(st.integers(1, 5))):
        lost = draw(st.sets(st.sampled_from([each.worker for each in known] or [0])))
        known = [each for each in known if each.worker not in lost]
        before = max((each.worker for each in known), default=0)
        limits = draw(st.lists(st.integers(1, stages), max_size=6))
        known += [Candidate(before + 1 + place, most) for place, most in enumerate(limits)]
        last, rows = rows, form_rows(stages, known, rows, shares=draw(st.booleans()))
    return stages, known, last


@given(formations())
def test_each_stage_of_a_row_has_one_worker_and_each_worker_one_row(
    drawn: tuple[int, list[Candidate], list[Seats]],
) -> None:
    stages, candidates, former = drawn
    rows = form_rows(stages, candidates, former, shares=True)
    workers = [seat.worker for seats in rows for seat in seats]
    assert len(workers) == len(set(workers)) and set(workers) <= {each.worker for each in candidates}
    most = {each.worker: each.most_stages for each in candidates}
    assert all(1 <= run.count <= most[worker] for seats in rows for worker, run in seats)
    assert len(rows) == (max(1, len(candidates) // stages) if candidates else 0)
    for seats in rows:
        held = [stage for _, run in seats for stage in range(run.first, run.stop)]
        assert held == sorted(set(held)) and set(held) <= set(range(stages))
        assert len(held) == stages or (len(rows) == 1 and sum(most.values()) < stages)
    shared = any(run.count > 1 for seats in rows for _, run in seats)
    assert not shared or len(workers) == len(candidates) < stages, "a spare is used before anything is shared"
    assert form_rows(stages, candidates, rows, shares=True) == rows, "nothing changes without a cause"
    assert form_rows(stages, candidates, former, shares=True) == rows


@given(formations(), st.data())
def test_a_lost_worker_changes_its_row_alone(
    drawn: tuple[int, list[Candidate], list[Seats]], data: st.DataObject
) -> None:
    stages, candidates, former = drawn
    rows = form_rows(stages, candidates, former, shares=True)
    if not rows:
        return
    lost = data.draw(st.sampled_from([seat.worker for seats in rows for seat in seats]))
    left = [each for each in candidates if each.worker != lost]
    after = form_rows(stages, left, rows, shares=True)
    assert all(seats in after for seats in rows if lost not in {seat.worker for seat in seats})
    spares = len(candidates) - sum(map(len, rows))
    if spares and len(rows) > 0:
        assert len(after) == len(rows)
        kept = {seat for seats in rows for seat in seats if seat.worker != lost}
        assert kept <= {seat for seats in after for seat in seats}, "only the spare builds anything"
