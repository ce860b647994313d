"""Pieces of chunks: each element of the parts is in exactly one, and has one place in an array of the parts alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.cluster_pb2 import LayoutPart
from services.errors import Refusal
from services.tensors import layout_parts
from services.tensors.layout_parts import LayoutParts, Piece, check_cover, join_parts, parse_parts
from tests.support.facts import has_facts

CHUNK = 4
BORDERS = st.lists(st.integers(0, 40), unique=True, max_size=12).map(sorted)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_parts, "CHUNK_ELEMENTS", CHUNK)


def make_parts(borders: list[int]) -> LayoutParts:
    return LayoutParts(list(zip(borders[::2], borders[1::2], strict=False)))


def elements_of(parts: LayoutParts) -> list[int]:
    return [element for start, stop in parts.runs for element in range(start, stop)]


@given(BORDERS)
def test_pieces_cover_the_parts_in_order_and_lie_in_their_chunks(borders: list[int]) -> None:
    parts = make_parts(borders)
    pieces = [parts[place] for place in range(len(parts))]
    covered = [element for each in pieces for element in range(each.offset, each.offset + each.elements)]
    assert covered == elements_of(parts)
    assert all({at // CHUNK for at in range(o, o + n)} == {chunk} for chunk, o, n in pieces)
    assert all(parts.has(each) for each in pieces)


@given(st.sets(st.integers(1, 39)), st.data())
def test_the_parts_of_a_rows_workers_cover_the_layout_once(borders: set[int], data: st.DataObject) -> None:
    runs: dict[int, list[tuple[int, int]]] = {}
    for run in pairwise(sorted({0, 40, *borders})):
        runs.setdefault(data.draw(st.integers(0, 3)), []).append(run)
    row = [LayoutParts(each) for each in runs.values()]
    assert check_cover(row, 40) is None
    pieces = {
        piece: owner for owner, parts in enumerate(row) for piece in map(parts.__getitem__, range(len(parts)))
    }
    assert sum(each.elements for each in pieces) == 40
    for piece, owner in pieces.items():
        assert [parts.has(piece) for parts in row] == [other == owner for other in range(len(row))]
        for field in piece._fields:
            near = piece._replace(**{field: getattr(piece, field) + 1})
            assert near in pieces or not row[owner].has(near)
    one = data.draw(st.sampled_from(row))
    assert isinstance(check_cover([each for each in row if each is not one], 40), Refusal)
    assert isinstance(check_cover([*row, one], 40), Refusal)


@given(BORDERS)
def test_an_array_of_the_parts_alone_has_each_element_once(borders: list[int]) -> None:
    parts, own = make_parts(borders), elements_of(make_parts(borders))
    assert parts.elements == len(own)
    assert [parts.find(element) for element in own] == list(range(len(own)))
    assert all(parts.find(other) is None for other in range(45) if other not in own)


@given(BORDERS)
def test_a_piece_is_there_once_all_of_its_elements_are(borders: list[int]) -> None:
    parts = make_parts(borders)
    starts = [parts.find(parts[place].offset) for place in range(len(parts))]
    for index in range(parts.elements + 1):
        expected = next(
            (place for place, start in enumerate(starts) if start is not None and start >= index), len(parts)
        )
        assert parts.place_from(index) == expected


@given(BORDERS, st.sets(st.integers(0, 12)))
def test_the_places_of_chunks_are_those_of_their_pieces(borders: list[int], chunks: set[int]) -> None:
    parts = make_parts(borders)
    expected = [place for place in range(len(parts)) if parts[place].chunk in chunks]
    assert sorted(parts.places(sorted(chunks))) == expected


@given(BORDERS, BORDERS)
def test_joined_parts_have_the_elements_of_both(first: list[int], second: list[int]) -> None:
    both = join_parts([make_parts(first), make_parts(second)])
    assert elements_of(both) == sorted({*elements_of(make_parts(first)), *elements_of(make_parts(second))})


@given(BORDERS)
def test_parts_are_read_as_they_were_sent(borders: list[int]) -> None:
    parts = make_parts(borders)
    read = parse_parts(parts.to_messages(), 45)
    assert isinstance(read, LayoutParts) and read.runs == parts.runs
    if parts.runs:
        assert isinstance(parse_parts(parts.to_messages(), parts.runs[-1][1] - 1), Refusal)


@pytest.mark.parametrize(
    ("runs", "facts"),
    [
        ([(0, 5), (4, 3)], "part 1 ... 4 to 7 ... from 5 to 9"),
        ([(0, 10)], "part 0 ... 0 to 10 ... from 0 to 9"),
        ([(3, 0)], "part 0 ... 3 to 3"),
        ([(5, 2), (0, 2)], "part 1 ... 0 to 2 ... from 7 to 9"),
    ],
)
def test_parts_that_are_none_of_the_layout_are_refused(runs: list[tuple[int, int]], facts: str) -> None:
    refusal = parse_parts([LayoutPart(offset=offset, elements=size) for offset, size in runs], 9)
    assert isinstance(refusal, Refusal) and has_facts(str(refusal), facts)


def test_parts_of_a_row_must_cover_the_layout_once() -> None:
    assert check_cover([LayoutParts([(0, 5), (9, 12)]), LayoutParts([(5, 9)])], 12) is None
    for wrong in ([(5, 8)], [(4, 9)]):
        refusal = check_cover([LayoutParts([(0, 5), (9, 12)]), LayoutParts(wrong)], 12)
        assert isinstance(refusal, Refusal)
    assert not LayoutParts([(0, 5)]).has(Piece(0, 0, 3))
