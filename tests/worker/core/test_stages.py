"""The worker's core with some stages of a pipeline: pieces of chunks, and leases of its row alone."""

from __future__ import annotations

import pytest

from protos import cluster_pb2 as pb
from protos.files_pb2 import FileRef
from protos.tensors_pb2 import NonFinite
from services.pipeline.split import StageRun
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.layout_parts import Piece, parse_parts
from services.tensors.stripes import Stripe
from tests.support.chunk_sets import to_ranges
from tests.support.dialogues.worker import Dialogue
from worker.core import events as ev

C = CHUNK_ELEMENTS
PARTS = [(100, C + 50), (C + 60, 2 * C)]
"""Parts of an interleaved last stage. With the tied table, elements 0 to 30, chunk 0 has two pieces and chunk 1 too."""
LOADS = [Piece(0, 0, 30), Piece(0, 100, C - 100), Piece(1, C, 50), Piece(1, C + 60, C - 60)]


def build_stage() -> Dialogue:
    """Return a dialogue with a worker that has built the second of two stages."""
    talk = Dialogue(3, StageRun(1, 1), PARTS, shared=[(0, 30)])
    talk.connect()
    assert talk.join() == ["build a, stage 1"]
    assert talk.built() == ["send Ready"]
    return talk


def join_row() -> Dialogue:
    """Return a dialogue with a worker that has a row and the weights of version 1.0."""
    talk = build_stage()
    assert talk.order(pb.Row(job="a", row=1)) == ["open row 1"]
    assert talk.pieces(1, 0, LOADS) == ["load #0", "load #0+100", "load #1", "load #1+60"]
    assert talk.loaded(1, 0) == ["send WeightsLoaded 1.0"]
    return talk


def sent_by(talk: Dialogue, event: ev.Input) -> pb.Computed:
    (message,) = [effect.body for effect in talk.core.handle(event) if isinstance(effect, ev.ToAggregator)]
    assert isinstance(message, pb.Computed)
    return message


# ---- building ----


def test_ready_names_the_stages_and_their_parts_of_the_layout() -> None:
    talk = build_stage()
    (effect,) = talk.core.handle(
        ev.Ordered(
            1,
            pb.Join(
                job="a",
                spec_json=talk.core.job.spec_json if talk.core.job else None,
                first_stage=1,
                stages=1,
                build=5,
            ),
        )
    )
    assert isinstance(effect, ev.ToAggregator) and isinstance(effect.body, pb.Ready)
    ready = effect.body
    assert (ready.first_stage, ready.stages, ready.elements) == (1, 1, 3 * C)
    assert ready.build == 5, "the last order that they were built for"
    for sent, expected in ((ready.parts, PARTS), (ready.shared, [(0, 30)])):
        parts = parse_parts(sent, ready.elements)
        assert list(getattr(parts, "runs", ())) == expected


def test_other_stages_of_the_same_job_are_built_in_place_of_these() -> None:
    talk = join_row()
    talk.lease(7, row=1)
    talk.stages = StageRun(0, 2)
    assert talk.join() == ["drop lease 7", "close row", "drop job", "build a, stages 0-1"]
    assert talk.join() == [], "being built"
    former = ev.Built("a", "hash", 3 * C, 2, 10, stages=StageRun(1, 1), number=1)
    assert talk.give(former) == [], "a build that was dropped meanwhile"
    assert talk.give(ev.BuildFailed("a", "no", number=1)) == []
    assert talk.built() == ["send Ready"]


def test_stages_that_do_not_fit_are_reported_as_such() -> None:
    talk = Dialogue(3, StageRun(0, 2))
    talk.connect()
    talk.join()
    failed = ev.BuildFailed("a", "too little memory", too_large=True)
    assert talk.give(failed) == ["send Failure, too large: too little memory (stages 0-1)"]
    talk.stages = StageRun(0, 1)
    assert talk.join() == ["build a, stage 0"]


def test_stages_whose_memory_is_full_are_given_up_unless_fewer_are_none() -> None:
    talk = Dialogue(3, StageRun(0, 2), PARTS)
    talk.connect()
    talk.join()
    talk.built()
    talk.order(pb.Row(job="a", row=1))
    talk.lease(7, 0, phase=pb.INITIALISE, row=1)
    dropped = ["drop lease 7", "close row", "drop job"]
    full = ev.LeaseFailed(7, "memory is full", too_large=True)
    assert talk.give(full) == ["send Failure, too large: memory is full (stages 0-1)", *dropped]
    talk = join_row()
    talk.lease(7, row=1)
    assert talk.give(full) == ["drop lease 7", "send Failure: memory is full"]
    found = talk.give(ev.LoadFailed("a", "memory is full", too_large=True))
    assert found == ["send Failure, too large: memory is full (stage 1)", "close row", "drop job"]


def test_stages_with_a_damaged_file_or_an_unfit_mesh_are_built_again() -> None:
    talk = join_row()
    damaged = ev.InputDamaged("a", ev.DamagedInput("ids.bin", 7), "ids.bin: differs")
    assert talk.give(damaged)[-1] == "build a, stage 1 without ids.bin"
    talk.give(ev.BuildFailed("a", "no mesh", unfit=True))
    assert talk.give(ev.BuildDue(1)) == ["build a, stage 1"]


# ---- rows ----


def test_leases_of_other_rows_are_stale() -> None:
    talk = build_stage()
    assert talk.lease(3, 0, phase=pb.INITIALISE) == [], "it has no row yet"
    talk.order(pb.Row(job="a", row=1))
    talk.pieces(1, 0, LOADS)
    assert talk.lease(4, row=1) == ["perform 4"]
    assert talk.lease(5, row=2) == []
    assert talk.order(pb.Row(job="a", row=1)) == [], "repeated"
    assert talk.order(pb.Row(job="a", row=2)) == ["drop lease 4", "open row 2"]
    assert talk.lease(6, row=1) == []
    assert talk.lease(7, row=2) == ["perform 7"]


def test_a_repeated_lease_of_a_row_is_not_performed_again() -> None:
    talk = join_row()
    assert talk.lease(7, phase=pb.EVALUATE, row=1) == ["perform 7"]
    talk.give(ev.LeaseEvaluated(7, ()))
    assert talk.lease(7, phase=pb.EVALUATE, row=1) == [], "its neighbours do not send their arrays again"
    assert talk.lease(8, phase=pb.EVALUATE, row=1) == ["perform 8"]


@pytest.mark.parametrize("ends", ["disconnected", "left", "other job"])
def test_a_row_ends_with_its_link_or_its_job(ends: str) -> None:
    talk = join_row()
    talk.lease(7, row=1)
    if ends == "disconnected":
        assert talk.give(ev.Disconnected()) == ["drop lease 7", "close row"]
        talk.connect(epoch=2)
        assert talk.join() == ["send Ready with 1.0"]
        assert talk.lease(8, row=1) == [], "the row is over"
        assert talk.order(pb.Row(job="a", row=9)) == ["open row 9"]
    elif ends == "left":
        assert talk.order(pb.Leave(job="a")) == ["drop lease 7", "close row", "drop job"]
    else:
        assert talk.join("b") == ["drop lease 7", "close row", "drop job", "build b, stage 1"]


def test_a_worker_without_stages_has_no_row() -> None:
    talk = Dialogue()
    talk.connect()
    talk.join()
    talk.built()
    assert talk.order(pb.Row(job="a", row=1)) == []
    assert talk.lease(7, phase=pb.INITIALISE, row=1) == []
    assert talk.lease(8, phase=pb.INITIALISE) == ["perform 8"]


def test_a_lease_that_fails_at_a_neighbour_names_it() -> None:
    talk = join_row()
    talk.lease(7, row=1)
    failed = ev.LeaseFailed(7, "no connection", neighbour="w2")
    assert talk.give(failed) == ["drop lease 7", "send Failure of w2: no connection"]


# ---- pieces ----


def test_weights_are_taken_by_their_pieces() -> None:
    talk = build_stage()
    wrong = [
        Piece(0, 0, C),
        Piece(0, 100, 30),
        Piece(1, C + 60, C - 50),
        Piece(2, 2 * C, C),
        Piece(0, 30, 70),
    ]
    assert talk.pieces(1, 0, wrong) == []
    assert talk.pieces(1, 0, [LOADS[0], LOADS[0], LOADS[1]]) == ["load #0", "load #0+100"]


def test_pieces_of_a_sum_are_sent_last_first_as_they_become_ready() -> None:
    talk = join_row()
    talk.lease(7, row=1)
    talk.give(ev.NodeReady(7, C + 60))
    assert talk.sent() == ["7 #1+60"]
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0), (NonFinite(micro_batch=1, parameter="w"),)))
    assert talk.sent() == ["7 #1", "7 #0+100"], "without losses"
    computed = sent_by(talk, ev.LeaseComputed(7, 1.0, 10))
    assert list(computed.findings.losses) == [1.0, 2.0]
    assert [each.micro_batch for each in computed.findings.non_finite] == [1]


def test_chunks_that_are_asked_for_are_sent_in_pieces() -> None:
    talk = join_row()
    talk.lease(7, row=1, chunks=[1, 2])
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0)))
    assert talk.sent() == ["7 #1+60", "7 #1"]
    talk.order(pb.Resend(job="a", lease=7, chunks=to_ranges([0, 1])))
    assert talk.sent() == ["7 #1+60", "7 #1", "7 #0+100"]


def test_a_stripe_s_stream_sends_the_pieces_of_its_chunks() -> None:
    talk = join_row()
    talk.lease(7, row=1)
    talk.give(ev.NodeReady(7, 0))
    first = talk.take_next(Stripe(0, 2))
    assert first is not None and (first.index, first.offset, first.elements) == (0, 100, C - 100)
    assert talk.take_next(Stripe(0, 2)) is None


def test_initial_weights_of_a_stage_are_sent_first_piece_first() -> None:
    talk = build_stage()
    talk.order(pb.Row(job="a", row=1))
    talk.lease(7, 0, phase=pb.INITIALISE, row=1)
    assert talk.give(ev.NodeReady(7, 0)) == [], "another stage describes the model"
    talk.order(pb.Resend(job="a", lease=7, chunks=to_ranges([0, 1, 2])))
    assert talk.sent() == ["7 #0+100", "7 #1", "7 #1+60"]
    assert talk.give(ev.InitialWeightsMade(7, FileRef(), {})) == ["send Description"]


def test_a_window_counts_chunks() -> None:
    talk = join_row()
    talk.order(pb.Window(job="a", generation=1, step=0, limit=2))
    talk.lease(7, row=1)
    talk.give(ev.NodeReady(7, 0))
    assert talk.sent() == ["7 #1+60", "7 #1"], "chunks 2 and 1, of which 2 is another stage's"
