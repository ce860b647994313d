"""A chunk is whole when all of its pieces are kept, and then only once."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.sums.piece_book import PieceBook
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.layout_parts import LayoutParts, Piece

ELEMENTS = 3 * CHUNK_ELEMENTS - 7


@given(st.sets(st.integers(1, ELEMENTS - 1), max_size=6), st.randoms())
def test_a_chunk_is_whole_with_its_last_piece(borders: set[int], order: random.Random) -> None:
    ends = sorted({0, ELEMENTS, *borders})
    parts = [LayoutParts([run]) for run in pairwise(ends)]
    pieces = [part[place] for part in parts for place in range(len(part))]
    order.shuffle(pieces)
    book, left = PieceBook(), {chunk: [p for p in pieces if p.chunk == chunk] for chunk in range(3)}
    for piece in pieces:
        assert book.add(8, piece)
        left[piece.chunk].remove(piece)
        assert book.take(8, piece.chunk, ELEMENTS) == (not left[piece.chunk])
    assert not book.kept()


def test_a_repeated_piece_counts_once() -> None:
    book = PieceBook()
    half = Piece(1, CHUNK_ELEMENTS, CHUNK_ELEMENTS // 2)
    assert book.add(8, half)
    assert not book.add(8, half)
    assert not book.take(8, 1, ELEMENTS)
    assert book.kept() == {(8, 1, CHUNK_ELEMENTS)}


def test_pieces_of_two_leases_make_no_chunk() -> None:
    book = PieceBook()
    middle = CHUNK_ELEMENTS + CHUNK_ELEMENTS // 2
    book.add(8, Piece(1, CHUNK_ELEMENTS, CHUNK_ELEMENTS // 2))
    book.add(9, Piece(1, middle, CHUNK_ELEMENTS // 2))
    assert not book.take(8, 1, ELEMENTS) and not book.take(9, 1, ELEMENTS)
    assert book.forget(8) and not book.forget(8)
    assert book.kept() == {(9, 1, middle)}
    book.clear()
    assert not book.kept()


def test_a_chunk_that_was_taken_can_come_again() -> None:
    book, whole = PieceBook(), Piece(2, 2 * CHUNK_ELEMENTS, CHUNK_ELEMENTS - 7)
    for _ in range(2):
        assert book.add(8, whole)
        assert book.take(8, 2, ELEMENTS)
    assert not book.forget(8), "no effect is needed for a lease of which nothing is kept"
