"""Mistakes that a plane could make. The seeds of `whole_steps` must detect each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from plane import plane as plane_module
from plane import sums
from plane.bookkeeping import PlaneCore
from plane.order_thread import OrderThread
from plane.plane import Plane
from plane.plane_tensors import PlaneTensors
from plane.streams.newest_weights import NewestWeights
from plane.sums import StoredSums
from plane.tensor_orders import TensorOrders
from protos import plane_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.protocol.versions import Version
from services.tensors.chunk_messages import TensorChunk
from services.tensors.stripes import Stripe


def adds_the_left_sum_twice(patch: pytest.MonkeyPatch) -> None:
    def add_all(left: Any, right: Any) -> Any:
        values = [each.values() if isinstance(each, TensorChunk) else each for each in (left, right)]
        return values[0] + values[0]

    patch.setattr(sums, "_sum", add_all)


def forgets_the_offset_of_pieces(patch: pytest.MonkeyPatch) -> None:
    keep_piece = StoredSums.keep_piece

    def keep(self: StoredSums, piece: TensorChunk) -> None:
        keep_piece(self, piece)
        kept = self._jobs[piece.header.job].pieces[piece.header.lease][piece.header.index]
        for place in sorted(kept)[1:]:
            kept.pop(place)

    patch.setattr(StoredSums, "keep_piece", keep)


def drops_the_pieces_of_all_leases(patch: pytest.MonkeyPatch) -> None:
    carry_out = StoredSums.carry_out

    def drop_all(self: StoredSums, order: Any) -> None:
        if isinstance(order, pb.DropPieces) and order.job in self._jobs:
            self._jobs[order.job].pieces.clear()
        else:
            carry_out(self, order)

    patch.setattr(StoredSums, "carry_out", drop_all)


def keeps_pieces_of_revoked_leases(patch: pytest.MonkeyPatch) -> None:
    carry_out = StoredSums.carry_out

    def keep(self: StoredSums, order: Any) -> None:
        if not isinstance(order, pb.DropPieces | pb.DropSums):
            carry_out(self, order)

    patch.setattr(StoredSums, "carry_out", keep)


def carries_out_the_newest_order_first(patch: pytest.MonkeyPatch) -> None:
    start = OrderThread.start
    patch.setattr(OrderThread, "start", lambda self, work: start(self, work[::-1]))


def takes_the_chunk_of_the_layout_for_its_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stripe, "to_local", lambda self, chunk: min(chunk, 0))


def stages_initial_weights_as_a_gradient(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlaneTensors, "store_initial", PlaneTensors.stage)


def applies_a_skipped_update(patch: pytest.MonkeyPatch) -> None:
    update = PlaneTensors.update

    def apply(self: PlaneTensors, order: pb.UpdatePart, on_ready: Any) -> None:
        order.applied = True
        update(self, order, on_ready)

    patch.setattr(PlaneTensors, "update", apply)


def forgets_beta1(patch: pytest.MonkeyPatch) -> None:
    update = PlaneTensors.update

    def without(self: PlaneTensors, order: pb.UpdatePart, on_ready: Any) -> None:
        order.ClearField("beta1")
        update(self, order, on_ready)

    patch.setattr(PlaneTensors, "update", without)


def forgets_to_clip(patch: pytest.MonkeyPatch) -> None:
    update = PlaneTensors.update

    def without(self: PlaneTensors, order: pb.UpdatePart, on_ready: Any) -> None:
        order.clip = 1.0
        update(self, order, on_ready)

    patch.setattr(PlaneTensors, "update", without)


def keeps_the_staged_sum_of_the_step_before(patch: pytest.MonkeyPatch) -> None:
    stage, staged = TensorOrders.stage, dict[int, Any]()

    def first(self: TensorOrders, order: pb.StageChunk, finished: Any) -> None:
        stage(self, order, finished if order.initial else staged.setdefault(id(self) + order.chunk, finished))

    patch.setattr(TensorOrders, "stage", first)


def copies_nothing_for_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    class SameArray(np.ndarray[Any, Any]):
        def copy(self, order: Any = "C") -> Any:
            return self

    arrays = PlaneTensors.arrays
    patch.setattr(
        PlaneTensors,
        "arrays",
        lambda self: {name: array.view(SameArray) for name, array in arrays(self).items()},
    )


def counts_kept_pieces_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plane_module.Plane, "_keep_piece", lambda self, piece: self._sums.keep_piece(piece))


def sends_the_version_before(patch: pytest.MonkeyPatch) -> None:
    next_weights = PlaneCore.next_weights

    def older(self: PlaneCore, session: int) -> ChunkHeader | None:
        header = next_weights(self, session)
        if header is not None:
            header.step -= 1
        return header

    patch.setattr(PlaneCore, "next_weights", older)


def loses_the_last_chunk_of_new_weights(patch: pytest.MonkeyPatch) -> None:
    weights_ready = PlaneCore.weights_ready
    patch.setattr(
        PlaneCore,
        "weights_ready",
        lambda self, job, version, chunks: weights_ready(self, job, version, chunks - 1),
    )


def writes_weights_again_that_are_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NewestWeights, "has_version", lambda self, header: False)


def sends_weights_while_they_are_made_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlaneCore, "remake_weights", lambda self: None)


def forgets_an_order_to_send(patch: pytest.MonkeyPatch) -> None:
    def forget(self: PlaneCore, session: int, version: Version, parts: Any = None) -> None:
        if version.step % 2:
            send_version(self, session, version, parts)

    send_version = PlaneCore.send_version
    patch.setattr(PlaneCore, "send_version", forget)


def does_not_report_an_update(patch: pytest.MonkeyPatch) -> None:
    weights_ready = Plane._weights_ready
    patch.setattr(Plane, "_weights_ready", lambda self, ready, updated: weights_ready(self, ready, False))


PLANE_MUTATIONS: list[Callable[[pytest.MonkeyPatch], None]] = [
    adds_the_left_sum_twice,
    forgets_the_offset_of_pieces,
    drops_the_pieces_of_all_leases,
    keeps_pieces_of_revoked_leases,
    carries_out_the_newest_order_first,
    takes_the_chunk_of_the_layout_for_its_own,
    stages_initial_weights_as_a_gradient,
    applies_a_skipped_update,
    forgets_beta1,
    forgets_to_clip,
    keeps_the_staged_sum_of_the_step_before,
    copies_nothing_for_a_checkpoint,
    counts_kept_pieces_for_ever,
    sends_the_version_before,
    loses_the_last_chunk_of_new_weights,
    writes_weights_again_that_are_read,
    sends_weights_while_they_are_made_again,
    forgets_an_order_to_send,
    does_not_report_an_update,
]
