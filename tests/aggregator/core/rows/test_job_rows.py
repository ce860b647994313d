"""Dialogues about leases of rows: reports and chunks of all workers become those of the row."""

from __future__ import annotations

from aggregator.core import events as ev
from aggregator.core.cluster_status import find_waits
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.tensors_pb2 import GRADIENT, ChunkHeader, NonFinite
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.layout_parts import Piece
from tests.support.dialogues.aggregator import arrived, layout_ref
from tests.support.dialogues.rows import RowDialogue, training_rows
from tests.support.facts import has_facts

HALF = CHUNK_ELEMENTS // 2


# ---- a step ----


def test_a_step_is_the_sum_of_chunks_put_together_from_pieces() -> None:
    dialogue = training_rows(1, 2, 3, stages=3)
    assert dialogue.sends(3, 1, 0) == ["keep 0-3 #2", "forward #2", f"keep piece {3 * HALF} of #1"]
    assert dialogue.sends(2, 1, 0) == [
        f"keep piece {2 * HALF} of #1",
        "keep 0-3 #1",
        "forward #1",
        f"keep piece {HALF} of #0",
    ]
    assert dialogue.sends(1, 1, 0) == ["keep piece 0 of #0"], "the losses of chunk 0 are not known"
    assert dialogue.tells(2) == dialogue.tells(3, losses=[1, 2, 3, 6]) == []
    assert dialogue.tells(1) == ["keep 0-3 #0", "forward #0"]
    dialogue.commits(1, 0)
    assert dialogue.job().step == 1 and dialogue.job().loss == 3.0


def test_chunk_0_goes_on_at_once_if_all_have_computed_before() -> None:
    dialogue = training_rows(1, 2)
    assert dialogue.tells(1) == dialogue.tells(2, losses=[1, 2, 3, 4]) == []
    dialogue.sends(2, 1, 0)
    assert dialogue.sends(1, 1, 0) == ["keep piece 0 of #0", "keep 0-3 #0", "forward #0"]


def test_one_worker_with_all_stages_sends_whole_chunks_and_chunk_0_waits_for_its_report() -> None:
    dialogue = training_rows()
    dialogue.hello(1)
    dialogue.give(ev.DataStreamOpened(1))
    dialogue.builds(1, holds=(1, 0))
    assert dialogue.sends(1, 1, 0) == ["keep 0-3 #1", "forward #1"]
    assert dialogue.tells(1, losses=[1, 2, 3, 4]) == ["keep 0-3 #0", "forward #0"]


def test_a_row_is_as_fast_as_its_slowest_worker_and_status_says_how_fast_each_is() -> None:
    dialogue = training_rows(1, 2)
    dialogue.later(4.0, 1, 2)
    dialogue.tells(1, seconds=1.0)
    dialogue.tells(2, seconds=4.0)
    assert [each.micro_batches_per_second for each in dialogue.status().workers] == [
        4.0,
        1.0,
    ]
    run = dialogue.run
    assert run is not None and [each.speed for each in run.lease_book.able_rows()] == [1.0]


def test_gradients_that_are_not_finite_are_those_of_the_worker_that_found_them() -> None:
    dialogue = training_rows(1, 2)
    dialogue.tells(1)
    dialogue.tells(2, non_finite=[NonFinite(micro_batch=1, parameter="b"), NonFinite(micro_batch=7)])
    dialogue.sends(2, 1, 0)
    header = ChunkHeader(
        job="a", epoch=3, generation=1, lease=dialogue.leases[1], kind=GRADIENT, index=0, elements=HALF
    )
    (forward,) = (
        effect
        for effect in dialogue.core.handle(arrived(1, header), dialogue.clock)
        if isinstance(effect, plane.FinishSum)
    )
    assert list(forward.header.findings.non_finite) == [NonFinite(micro_batch=1, parameter="b", worker="w2")]


def test_repeated_reports_and_pieces_change_nothing() -> None:
    dialogue = training_rows(1, 2)
    assert dialogue.tells(1) == dialogue.tells(1) == []
    dialogue.sends(2, 1, 0)
    assert dialogue.sends(2, 1, 0, 0) == []
    dialogue.sends(1, 1, 0)
    assert dialogue.tells(2, losses=[1, 2, 3, 4])[-1] == "forward #0"
    assert dialogue.tells(2, losses=[1, 2, 3, 4]) == []


def test_a_worker_that_sends_a_piece_of_others_parts_is_sent_away() -> None:
    for session, piece in (
        (1, Piece(0, HALF, HALF)),
        (1, Piece(1, CHUNK_ELEMENTS, HALF)),
        (2, Piece(0, 0, CHUNK_ELEMENTS)),
    ):
        dialogue = training_rows(1, 2)
        closed, *orders = dialogue.send_piece(session, GRADIENT, piece, generation=1)
        stop = piece.offset + piece.elements
        assert has_facts(
            closed, f"{session} closed: ... elements {piece.offset} to {stop} of chunk {piece.chunk}"
        )
        assert orders == [f"{3 - session} <- revoke"]


# ---- what is void ----


def test_pieces_of_a_lost_row_are_dropped_and_its_reports_are_stale() -> None:
    dialogue = training_rows(1, 2, 3)
    former = dialogue.leases[1]
    dialogue.sends(1, 1, 0)
    dialogue.tells(1)
    assert dialogue.give(ev.WorkerLost(2, "gone")) == ["drop pieces", "1 <- revoke", "3 <- join stage 1"]
    dialogue.builds(3, holds=(1, 0))
    assert dialogue.tells(1, lease=former) == dialogue.sends(1, 1, 0, lease=former) == []
    dialogue.sends(3, 1, 0)
    assert dialogue.tells(3, losses=[1, 2, 3, 4]) == []
    assert dialogue.tells(1) == [], "the piece of the former lease does not count"
    assert dialogue.sends(1, 1, 0)[-1] == "forward #0"


def test_only_what_is_missing_is_leased_again() -> None:
    dialogue = training_rows(1, 2, 3)
    dialogue.sends(2, 1, 0)
    dialogue.give(ev.WorkerLost(1, "gone"))
    dialogue.builds(3, holds=(1, 0))
    assert dialogue.leases[2] == dialogue.leases[3]
    assert dialogue.sends(2, 1, 0, 0) and dialogue.sends(3, 1, 0, 0)
    dialogue.tells(2, losses=[1, 2, 3, 4])
    assert dialogue.tells(3)[-1] == "forward #0"


def test_a_failed_lease_is_void_for_all_workers_and_counts_against_one() -> None:
    dialogue = training_rows(1, 2)
    former = dialogue.leases[1]
    dialogue.sends(1, 1, 0)
    failure = pb.Failure(job="a", lease=former, reason="out of memory")
    orders = dialogue.says(2, failure)
    assert orders[:3] == ["drop pieces", "1 <- revoke", "1 <- window 2"] and "1 <- train 0-3 of 1.0" in orders
    assert dialogue.says(1, failure) == [], "its lease is void already"
    assert dialogue.leases[1] > former
    dialogue.arrives(3)
    for _ in range(2):
        orders = dialogue.says(2, pb.Failure(job="a", lease=dialogue.leases[2], reason="out of memory"))
    assert has_facts(" ".join(orders), "2 <- leave: 3 leases in a row failed")
    assert dialogue.told[3] == dialogue.told[2], "the spare takes over"


def test_work_that_fails_on_two_workers_ends_the_job() -> None:
    dialogue = training_rows(1, 2, 3)
    dialogue.says(2, pb.Failure(job="a", lease=dialogue.leases[2], reason="NaN in the data"))
    dialogue.give(ev.WorkerLost(2, "gone"))
    dialogue.builds(3, holds=(1, 0))
    dialogue.says(3, pb.Failure(job="a", lease=dialogue.leases[3], reason="NaN in the data"))
    assert has_facts(dialogue.job().detail, "failed on two workers; w2: NaN ... w3: NaN")


# ---- the optimizer ----


def test_a_reconnected_optimizer_gets_missing_chunks_from_all_workers_that_have_pieces() -> None:
    dialogue = training_rows(1, 2, 3, stages=3)
    lease = dialogue.leases[1]
    for session in (3, 2, 1):
        dialogue.sends(session, 1, 0)
        dialogue.tells(session, losses=[1, 2, 3, 4] if session == 3 else ())
    dialogue.give(ev.OptimizerLost("gone"))
    assert dialogue.optimizer() == ["optimizer <- Open"]
    orders = dialogue.stands(1, 0, missing=[1])
    assert [line for line in orders if "resend" in line] == [
        f"{session} <- resend #1" for session in (1, 2, 3)
    ]
    assert dialogue.sends(3, 1, 0, 1, lease=lease) == [f"keep piece {3 * HALF} of #1"]
    assert dialogue.sends(1, 1, 0, 1, lease=lease) == [], "the first stage has nothing of it"
    assert dialogue.sends(2, 1, 0, 1, lease=lease)[-1] == "forward #1"


def test_chunk_0_that_is_sent_again_waits_for_no_second_report() -> None:
    dialogue = training_rows(1, 2)
    for session in (2, 1):
        dialogue.sends(session, 1, 0)
        dialogue.tells(session, losses=[1, 2, 3, 4] if session == 2 else ())
    dialogue.give(ev.OptimizerLost("gone"))
    dialogue.optimizer()
    dialogue.stands(1, 0, missing=[0])
    dialogue.sends(2, 1, 0, 0)
    assert dialogue.sends(1, 1, 0, 0)[-1] == "forward #0"


def test_a_row_whose_worker_is_lost_computes_only_the_missing_chunks_in_the_middle() -> None:
    dialogue = training_rows(1, 2, 3, 4, stages=3)
    for session in (3, 2, 1):
        dialogue.sends(session, 1, 0)
        dialogue.tells(session, losses=[1, 2, 3, 4] if session == 3 else ())
    dialogue.give(ev.OptimizerLost("gone"))
    dialogue.give(ev.WorkerLost(2, "gone"))
    dialogue.optimizer()
    dialogue.stands(1, 0, missing=[1])
    orders = dialogue.builds(4, holds=(1, 0))
    assert "4 <- train 0-3 of 1.0 only #1" in orders and "1 <- train 0-3 of 1.0 only #1" in orders
    assert dialogue.tells(1) == dialogue.tells(4) == dialogue.tells(3, losses=[1, 2, 3, 4]) == []
    dialogue.sends(3, 1, 0, 1)
    assert dialogue.sends(4, 1, 0, 1)[-1] == "forward #1"


def test_pieces_of_a_step_that_is_over_are_forgotten() -> None:
    dialogue = training_rows(1, 2)
    former = dialogue.leases[1]
    dialogue.sends(1, 1, 0)
    orders = dialogue.commits(1, 0)
    assert orders[0] == "drop all" and "drop pieces" not in orders, "the service drops them with the sums"
    assert dialogue.sends(2, 1, 0, 0, lease=former) == []


# ---- initial weights and evaluation ----


def initialising(*workers: int) -> RowDialogue:
    dialogue = RowDialogue()
    dialogue.submit(stages=2)
    dialogue.optimizer()
    for worker in workers:
        dialogue.arrives(worker)
    for worker in workers[:2]:
        dialogue.builds(worker)
    dialogue.stands(1, 0, state=pb.OptimizerStatus.EMPTY)
    return dialogue


def test_each_worker_makes_the_initial_weights_of_its_stages_and_the_first_describes_them() -> None:
    dialogue = initialising(1, 2)
    described = pb.Description(job="a", lease=dialogue.leases[1], layout=layout_ref(dialogue.layout))
    assert dialogue.says(2, described) == []
    assert dialogue.says(1, described) == ["optimizer <- Initialise"]
    resends = ["drop all", "1 <- resend #0 #1", "2 <- resend #0 #1"]
    assert dialogue.stands(1, 0, state=pb.OptimizerStatus.RECEIVING) == resends
    assert dialogue.sends_initial(1) == ["keep piece 0 of #0"]
    assert dialogue.sends_initial(2, 0) == [
        f"keep piece {HALF} of #0",
        "keep 0 #0",
        "forward #0",
    ]
    (wait,) = find_waits(dialogue.core, dialogue.now)
    assert (wait.peer, wait.what) == ("w1, w2", "initial weights")
    assert dialogue.sends_initial(2, 1) == ["keep 0 #1", "forward #1"]
    assert not find_waits(dialogue.core, dialogue.now)


def test_initial_weights_of_a_lost_worker_are_made_again_by_another_row() -> None:
    dialogue = initialising(1, 2, 3)
    former = dialogue.leases[1]
    dialogue.says(1, pb.Description(job="a", lease=former, layout=layout_ref(dialogue.layout)))
    dialogue.stands(1, 0, state=pb.OptimizerStatus.RECEIVING)
    dialogue.sends_initial(1)
    orders = dialogue.give(ev.WorkerLost(1, "gone"))
    assert orders == ["drop pieces", "2 <- revoke", "3 <- join stage 0"]
    assert dialogue.builds(3)[-2:] == ["3 <- initialise", "2 <- initialise"]
    assert dialogue.says(2, pb.Description(job="a", lease=former, layout=layout_ref(dialogue.layout))) == []
    assert dialogue.leases[2] > former


def test_losses_of_held_out_batches_come_from_the_last_stage() -> None:
    dialogue = training_rows(1, 2, step=4)
    assert dialogue.job().phase == "evaluate"
    first = dialogue.leases[1]
    assert first == dialogue.leases[2]
    assert dialogue.evaluated(2, 1, 4, (0, 1.0)) == []
    assert dialogue.evaluated(1, 1, 4) == ["1 <- evaluate 1 of 1.4", "2 <- evaluate 1 of 1.4"]
    for loss in (2.0, 6.0):
        index = int(loss) // 3
        dialogue.evaluated(1, 1, 4)
        dialogue.evaluated(2, 1, 4, (1 + index // 2, loss))
    assert dialogue.job().validation_loss == 3.0
    assert dialogue.give(ev.WorkerLost(1, "gone")) == [], "no lease is left to revoke"


def test_an_evaluation_goes_on_with_another_row() -> None:
    dialogue = training_rows(1, 2, 3, step=4)
    dialogue.evaluated(2, 1, 4, (0, 1.0))
    dialogue.give(ev.WorkerLost(1, "gone"))
    orders = dialogue.builds(3, holds=(1, 4))
    assert orders[-2:] == ["3 <- evaluate 0 of 1.4", "2 <- evaluate 0 of 1.4"]


# ---- weights ----


def test_each_worker_gets_the_weights_of_its_own_parts_and_of_the_shared_ones() -> None:
    dialogue = training_rows(1, 2)
    assert dialogue.commits(1, 0)
    dialogue.weights(1, 1, 0)
    assert dialogue.sent_weights(1) == f"1.1 0+{HALF}"
    assert dialogue.sent_weights(2) == f"1.1 {HALF}+{dialogue.layout.elements - HALF}"
    dialogue.give(ev.WorkerLost(2, "gone"))
    dialogue.arrives(4)
    dialogue.builds(4, shared=[pb.LayoutPart(elements=9)])
    assert dialogue.sent_weights(4) == f"1.1 0+9 {HALF}+{dialogue.layout.elements - HALF}"
    dialogue.weights(1, 1, 1)
    for session in (1, 4):
        dialogue.weights_loaded(session, 1, 1)
    assert dialogue.sends(4, 1, 1, 0)
    closed = dialogue.send_piece(4, GRADIENT, Piece(0, 0, 9), generation=1, step=1)[0]
    assert closed.startswith("4 closed"), "gradients are those of its own parts alone"


def test_a_row_has_the_weights_once_all_of_its_workers_have() -> None:
    dialogue = training_rows(1, 2)
    dialogue.commits(1, 0)
    dialogue.weights(1, 1, 0, 1)
    run = dialogue.run
    assert run is not None
    (row,) = run.lease_book.able_rows()
    assert dialogue.weights_loaded(2, 1, 1) == [] and row.loaded_version is not None
    assert row.loaded_version.step == 0
    dialogue.weights_loaded(1, 1, 1)
    assert row.loaded_version.step == 1


def test_the_last_stage_says_what_counts_and_others_may_not() -> None:
    for session, count, expected in ((1, 1, "0"), (2, 0, "1 to 40"), (2, 41, "1 to 40")):
        dialogue = training_rows(1, 2)
        (left,) = [each for each in dialogue.tells(session, count=count) if "leave" in each]
        assert has_facts(left, f"findings.count is {count}, expected {expected}")
