"""Mutations of what carries payloads through shards. Seeds with shards and pipelines must detect each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from aggregator.core import events as ev
from aggregator.core.sums import chunk_router
from aggregator.core.sums.chunk_router import ChunkRouter
from aggregator.core.sums.piece_book import PieceBook
from aggregator.core.sums.plane_orders import keep_sum
from aggregator.data_plane import DataPlane
from plane.messages import SequenceFilter
from protos import plane_pb2 as plane
from services.tensors.layout_parts import Piece


def counts_a_piece_twice(patch: pytest.MonkeyPatch) -> None:
    def add(self: PieceBook, lease: int, piece: Piece) -> bool:
        self._kept.setdefault(lease, {}).setdefault(piece.chunk, {})[piece.offset] = piece.elements
        return True

    patch.setattr(PieceBook, "add", add)


def keeps_pieces_of_former_rows(patch: pytest.MonkeyPatch) -> None:
    submit = DataPlane.submit

    def submit_others(self: DataPlane, orders: Sequence[ev.PlaneOrder]) -> None:
        submit(self, [each for each in orders if not isinstance(each, plane.DropPieces)])

    patch.setattr(DataPlane, "submit", submit_others)


def expects_pieces_in_restarted_shards(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChunkRouter, "drop_all", lambda self: self._out.put(plane.DropSums(job=self._job)))


def drops_arrived_pieces(patch: pytest.MonkeyPatch) -> None:
    arrived = DataPlane._arrived

    def arrived_as_whole(self: DataPlane, link: Any, body: Any) -> None:
        if body.header.elements % 7:
            arrived(self, link, body)

    patch.setattr(DataPlane, "_arrived", arrived_as_whole)


def keeps_no_chunk_that_is_put_together(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        chunk_router, "keep_sum", lambda job, lease, chunks, node: keep_sum(job, lease, chunks, None)
    )


def carries_out_repeated_orders(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SequenceFilter, "is_new", lambda self, number: True)


SHARD_MUTATIONS: list[Callable[[pytest.MonkeyPatch], None]] = [
    counts_a_piece_twice,
    keeps_pieces_of_former_rows,
    expects_pieces_in_restarted_shards,
    drops_arrived_pieces,
    keeps_no_chunk_that_is_put_together,
    carries_out_repeated_orders,
]
