"""Mistakes that a plane could make. The seeds of `whole_steps` must detect each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aggregator.core.sums.chunk_router import ChunkRouter
from plane import messages, sums
from plane import plane as plane_module
from plane.bookkeeping import PlaneCore
from plane.order_thread import OrderThread, Steps
from plane.plane import Plane
from plane.plane_tensors import PlaneTensors
from plane.streams.newest_weights import NewestWeights
from plane.sums import StoredSums
from plane.tensor_orders import TensorOrders
from plane.waiting_payloads import ArrivedPiece, WaitingPayloads
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

    def drop_all(self: StoredSums, order: Any) -> Steps:
        if isinstance(order, pb.DropPieces) and order.job in self._jobs:
            self._jobs[order.job].pieces.clear()
        else:
            yield from carry_out(self, order)

    patch.setattr(StoredSums, "carry_out", drop_all)


def keeps_pieces_of_revoked_leases(patch: pytest.MonkeyPatch) -> None:
    carry_out = StoredSums.carry_out

    def keep(self: StoredSums, order: Any) -> Steps:
        if not isinstance(order, pb.DropPieces | pb.DropSums):
            yield from carry_out(self, order)

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

    def apply(self: PlaneTensors, order: pb.UpdatePart, on_ready: Any) -> Any:
        order.applied = True
        return update(self, order, on_ready)

    patch.setattr(PlaneTensors, "update", apply)


def forgets_beta1(patch: pytest.MonkeyPatch) -> None:
    update = PlaneTensors.update

    def without(self: PlaneTensors, order: pb.UpdatePart, on_ready: Any) -> Any:
        order.ClearField("beta1")
        return update(self, order, on_ready)

    patch.setattr(PlaneTensors, "update", without)


def forgets_to_clip(patch: pytest.MonkeyPatch) -> None:
    update = PlaneTensors.update

    def without(self: PlaneTensors, order: pb.UpdatePart, on_ready: Any) -> Any:
        order.clip = 1.0
        return update(self, order, on_ready)

    patch.setattr(PlaneTensors, "update", without)


def keeps_the_staged_sum_of_the_step_before(patch: pytest.MonkeyPatch) -> None:
    stage, staged = TensorOrders.stage, dict[tuple[TensorOrders, str, int], Any]()

    def first(self: TensorOrders, order: pb.StageChunks, chunk: int, finished: Any) -> None:
        place = self, order.job, chunk
        stage(self, order, chunk, finished if order.initial else staged.setdefault(place, finished))

    patch.setattr(TensorOrders, "stage", first)


def copies_nothing_for_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    def same(self: PlaneTensors) -> Any:
        yield
        return self.arrays()

    patch.setattr(PlaneTensors, "copy", same)


def counts_kept_pieces_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ArrivedPiece, "note_kept", lambda self: None)


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
    patch.setattr(PlaneCore, "remake_weights", lambda self, job: None)


def forgets_an_order_to_send(patch: pytest.MonkeyPatch) -> None:
    def forget(self: PlaneCore, session: int, job: str, version: Version, parts: Any = None) -> None:
        if version.step % 2:
            send_version(self, session, job, version, parts)

    send_version = PlaneCore.send_version
    patch.setattr(PlaneCore, "send_version", forget)


def does_not_report_an_update(patch: pytest.MonkeyPatch) -> None:
    weights_ready = Plane._weights_ready
    patch.setattr(Plane, "_weights_ready", lambda self, ready, updated: weights_ready(self, ready, False))


# ---- of several jobs ----


def drops_the_tensors_of_all_jobs(patch: pytest.MonkeyPatch) -> None:
    drop = TensorOrders._drop

    def drop_all(self: TensorOrders, job: str) -> None:
        self._tensors.clear()
        drop(self, job)

    patch.setattr(TensorOrders, "_drop", drop_all)


def clears_the_newest_weights_of_all_jobs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NewestWeights, "clear", lambda self, job: self._jobs.clear())


def marks_the_weights_of_all_jobs_as_ready(patch: pytest.MonkeyPatch) -> None:
    weights_ready = PlaneCore.weights_ready
    patch.setattr(
        PlaneCore,
        "weights_ready",
        lambda self, job, version, chunks: min(
            weights_ready(self, each, version, chunks) for each in self.jobs
        ),
    )


def sends_the_weights_of_the_first_job(patch: pytest.MonkeyPatch) -> None:
    send_version = PlaneCore.send_version
    patch.setattr(
        PlaneCore,
        "send_version",
        lambda self, session, job, *version: send_version(self, session, self.jobs[0], *version),
    )


def counts_the_payloads_of_all_workers_together(patch: pytest.MonkeyPatch) -> None:
    open_stream = WaitingPayloads.open_stream

    def share(self: WaitingPayloads, session: int) -> None:
        open_stream(self, session)
        self._pieces[session] = next(iter(self._pieces.values()))

    patch.setattr(WaitingPayloads, "open_stream", share)


def finishes_the_first_chunk_of_a_run_alone(patch: pytest.MonkeyPatch) -> None:
    route = ChunkRouter.route_initial_weights
    patch.setattr(
        ChunkRouter,
        "route_initial_weights",
        lambda self, header, chunks, elements: route(self, header, chunks[:1], elements),
    )


def merges_a_run_in_another_order(patch: pytest.MonkeyPatch) -> None:
    carry_out = StoredSums.carry_out

    def mixed_up(self: StoredSums, order: Any) -> Steps:
        if isinstance(order, pb.KeepSum) and len(order.chunks) > 1:
            kept = self._jobs[order.job].pieces[order.lease]
            first, second = order.chunks[:2]
            kept[first], kept[second] = kept[second], kept[first]
        yield from carry_out(self, order)

    patch.setattr(StoredSums, "carry_out", mixed_up)


def tells_only_the_last_chunk_that_is_staged(patch: pytest.MonkeyPatch) -> None:
    def replace(last: Any, body: Any) -> bool:
        if isinstance(last, pb.StagedChunks) and isinstance(body, pb.StagedChunks) and last.job == body.job:
            last.CopyFrom(body)
            return True
        return messages.extend(last, body)

    patch.setattr(plane_module, "extend", replace)


def stages_the_sum_of_another_job(patch: pytest.MonkeyPatch) -> None:
    for name in ("expect_sum", "take_sum"):
        original = getattr(WaitingPayloads, name)
        patch.setattr(
            WaitingPayloads, name, lambda self, job, chunk, original=original: original(self, "", chunk)
        )


def discards_the_sums_of_all_jobs_with_a_step(patch: pytest.MonkeyPatch) -> None:
    discard = WaitingPayloads.discard_sums

    def discard_all(self: WaitingPayloads, job: str) -> None:
        for each in {each for each, _ in self._finished}:
            discard(self, each)

    patch.setattr(WaitingPayloads, "discard_sums", discard_all)


def drops_the_sums_of_all_jobs(patch: pytest.MonkeyPatch) -> None:
    carry_out = StoredSums.carry_out

    def drop_all(self: StoredSums, order: Any) -> Steps:
        if isinstance(order, pb.DropSums):
            self._jobs.clear()
        else:
            yield from carry_out(self, order)

    patch.setattr(StoredSums, "carry_out", drop_all)


def reports_an_opening_as_another_jobs(patch: pytest.MonkeyPatch) -> None:
    opened = Plane._opened

    def report(self: Plane, order: pb.OpenPart, tensors: Any) -> None:
        order.job = self.jobs[0] if self.jobs else order.job
        opened(self, order, tensors)

    patch.setattr(Plane, "_opened", report)


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
    drops_the_tensors_of_all_jobs,
    clears_the_newest_weights_of_all_jobs,
    marks_the_weights_of_all_jobs_as_ready,
    sends_the_weights_of_the_first_job,
    counts_the_payloads_of_all_workers_together,
    finishes_the_first_chunk_of_a_run_alone,
    merges_a_run_in_another_order,
    tells_only_the_last_chunk_that_is_staged,
    stages_the_sum_of_another_job,
    discards_the_sums_of_all_jobs_with_a_step,
    drops_the_sums_of_all_jobs,
    reports_an_opening_as_another_jobs,
]
