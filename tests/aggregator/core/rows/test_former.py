"""Dialogues about workers that come and go: which stages they are told to build, and which leases are void."""

from __future__ import annotations

from aggregator.core import events as ev
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import RUNNING
from services.pipeline.row_ids import row_number
from services.pipeline.split import StageRun
from services.protocol.plan import EvaluationBatches
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import FINGERPRINT
from tests.support.dialogues.rows import RowDialogue, lost, state_of, too_large, training_rows, waits_for
from tests.support.facts import has_facts

SHARE_AFTER = STANDARD_TIMEOUTS.deaf + 2.5


def test_workers_build_a_stage_each_and_know_each_other_before_their_first_lease() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=2)
    dialogue.optimizer()
    dialogue.stands(1, 0)
    dialogue.weights(1, 0, 0, 1)
    assert dialogue.arrives(1) == []
    assert has_facts(waits_for(dialogue), "gives out stages: 1 of 2 (num_workers) are there; for 4 s at most")
    assert dialogue.arrives(2) == ["1 <- join stage 0", "2 <- join stage 1"]
    assert dialogue.arrives(3) == []
    assert has_facts(
        waits_for(dialogue), "to build their stages: w1 (stage 0, building), w2 (stage 1, building)"
    )
    assert dialogue.builds(1, holds=(1, 0)) == ["save a running"], "what it says of the job"
    assert dialogue.builds(2, holds=(1, 0)) == [
        "save a running",
        "1 <- row of stage 0 w1, stage 1 w2",
        "2 <- row of stage 0 w1, stage 1 w2",
        "save a running",
        "1 <- window 2",
        "2 <- window 2",
        "1 <- train 0-3 of 1.0",
        "2 <- train 0-3 of 1.0",
    ]
    assert state_of(dialogue) == {"w1": "computing stage 0", "w2": "computing stage 1", "w3": "spare"}
    (first, second, _) = dialogue.status().workers
    assert row_number(first.row) == row_number(second.row) == 1
    assert has_facts(waits_for(dialogue), "phase train, step 0; rows with its weights: 1 of 1")


def test_a_job_that_begins_shares_its_stages_once_the_workers_that_run_must_have_come() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=2)
    assert dialogue.arrives(1) == []
    assert dialogue.goes_by(STANDARD_TIMEOUTS.retry, 1) == []
    assert dialogue.goes_by(STANDARD_TIMEOUTS.tick, 1) == ["1 <- join stages 0-1"]


def test_sizes_of_batches_come_from_the_first_stage_since_others_may_have_read_no_data() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=2)
    dialogue.optimizer()
    dialogue.arrives(1)
    dialogue.arrives(2)
    dialogue.builds(2, holds=(1, 4), evaluation_batches=0, tokens_per_micro_batch=0)
    dialogue.stands(1, 4)
    dialogue.weights(1, 4, 0, 1)
    orders = dialogue.builds(1, holds=(1, 4))
    assert orders[-1] == "2 <- evaluate 0 of 1.4"


def test_a_first_stage_can_not_lie_about_the_number_of_batches_that_the_submitter_has_counted() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=3, evaluation_batches=EvaluationBatches(3, ""))
    for session in (1, 2, 3):
        dialogue.arrives(session)
    dialogue.builds(2, evaluation_batches=0)
    line = dialogue.builds(1, evaluation_batches=7)[0]
    assert has_facts(line, "1 <- leave: it has 7 held-out batches, expected the job's 3")
    assert dialogue.core.members[2].ready


def test_the_first_and_the_last_stage_must_agree_on_the_number_of_batches_that_they_alone_can_count() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=3)
    for session in (1, 2, 3):
        dialogue.arrives(session)
    dialogue.builds(1, evaluation_batches=7)
    dialogue.builds(2, evaluation_batches=0)
    line = dialogue.builds(3)[-1]
    assert has_facts(line, "3 <- leave: its model differs: it has 3 held-out batches, the job 7")


def test_a_worker_without_a_data_stream_takes_no_stages() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=2)
    assert dialogue.hello(1, pipeline_address="host1:1") == ["1 <- welcome"]
    assert dialogue.arrives(2) == [] and not dialogue.told
    assert dialogue.give(ev.DataStreamOpened(1)) == ["1 <- join stage 0", "2 <- join stage 1"]


def test_workers_that_are_there_before_the_job_share_its_stages_at_once() -> None:
    dialogue = RowDialogue(3)
    for session in (1, 2, 3):
        dialogue.arrives(session)
    assert dialogue.submit(stages=3) == [
        "save a running",
        "1 <- join stage 0",
        "2 <- join stage 1",
        "3 <- join stage 2",
    ]


def test_stages_follow_the_names_of_workers_that_are_there_before_the_job() -> None:
    dialogue = RowDialogue(stages=3)
    for session in (10, 2, 1):
        dialogue.arrives(session)
    dialogue.submit(stages=3)
    assert dialogue.told == {1: StageRun(0, 1), 2: StageRun(1, 1), 10: StageRun(2, 1)}, "w1, w2, w10"


def test_two_rows_divide_the_step_and_one_that_loses_a_stage_is_void_alone() -> None:
    dialogue = training_rows(1, 2, 3, 4)
    assert dialogue.leases[1] == dialogue.leases[2] != dialogue.leases[3] == dialogue.leases[4]
    kept = dialogue.leases[1]
    assert lost(dialogue, 4) == ["3 <- revoke"], "worker 3 waits for a worker with stage 1"
    assert dialogue.sends(3, 1, 0, lease=dialogue.leases[3]) == []
    dialogue.tells(1, lease=kept, losses=[1, 2])
    dialogue.tells(2, lease=kept)
    assert dialogue.leases[1] == dialogue.leases[2] > kept, "the rest goes to the row that is whole"
    assert dialogue.arrives(5) == ["5 <- join stage 1"]
    dialogue.builds(5, holds=(1, 0))
    assert state_of(dialogue)["w5"] == "ready stage 1"


def test_rows_of_each_job_count_from_1_and_their_workers_are_told_of_them_again() -> None:
    dialogue = training_rows(1, 2, 3)
    lost(dialogue, 1)
    dialogue.builds(3)
    assert dialogue.notes[-1] == "row 2 is ready: stage 0 on w3, stage 1 on w2"
    dialogue.submit("b", stages=2)
    dialogue.cancel("a")
    for session in (2, 3):
        ready = pb.Ready(
            job="b", layout_hash=dialogue.layout.hash, elements=dialogue.layout.elements, fingerprint=FINGERPRINT,
            evaluation_batches=3, first_stage=session - 2, stages=1, build=dialogue.orders[session],
            parts=dialogue.parts(5 - session).to_messages(),
        )  # fmt: skip
        orders = dialogue.says(session, ready)
    assert orders[1:3] == ["2 <- row of stage 0 w2, stage 1 w3", "3 <- row of stage 0 w2, stage 1 w3"]
    assert dialogue.notes[-1] == "row 1 is ready: stage 0 on w2, stage 1 on w3"


def test_a_spare_takes_the_place_of_a_lost_worker_and_the_others_keep_their_build() -> None:
    dialogue = training_rows(1, 2, 3)
    former = dialogue.leases[1]
    assert lost(dialogue, 2) == ["1 <- revoke", "3 <- join stage 1"]
    assert dialogue.builds(3) == ["1 <- row of stage 0 w1, stage 1 w3", "3 <- row of stage 0 w1, stage 1 w3"]
    assert not dialogue.sent_weights(1) and dialogue.sent_weights(3) == "1.0 262144+786427"
    assert dialogue.weights_loaded(3, 1, 0)[-2:] == ["1 <- train 0-3 of 1.0", "3 <- train 0-3 of 1.0"]
    assert dialogue.leases[1] > former
    assert dialogue.sends(1, 1, 0, lease=former) == [], "what is under way for the former row is void"
    assert dialogue.tells(1, lease=former, losses=[1, 2, 3, 4]) == []


def test_without_a_spare_the_neighbour_takes_the_stage_once_no_other_has_come() -> None:
    dialogue = training_rows(1, 2, 3, stages=3)
    assert lost(dialogue, 2) == ["1 <- revoke", "3 <- revoke"]
    assert waits_for(dialogue) == "waits for a worker for stage 1 of 3; the others share them in 30 s"
    assert dialogue.goes_by(SHARE_AFTER - 5, 1, 3) == []
    assert dialogue.goes_by(5, 1, 3) == ["1 <- join stages 0-1"]
    assert dialogue.builds(1) == [
        "1 <- row of stages 0-1 w1, stage 2 w3",
        "3 <- row of stages 0-1 w1, stage 2 w3",
    ]
    dialogue.sent_weights(1)
    assert "3 <- train 0-3 of 1.0" in dialogue.weights_loaded(1, 1, 0)


def test_a_worker_that_comes_later_relieves_one_with_several_stages() -> None:
    dialogue = training_rows(1)
    dialogue.goes_by(SHARE_AFTER, 1)
    assert dialogue.told[1] == StageRun(0, 2)
    dialogue.builds(1, holds=(1, 0))
    former = dialogue.leases[1]
    assert dialogue.arrives(2) == ["1 <- revoke", "1 <- join stage 0", "2 <- join stage 1"]
    assert dialogue.tells(1, count=1, lease=former) == [], "a late report of the last stage, which it had"
    dialogue.builds(1)
    dialogue.builds(2)
    for session in (1, 2):
        dialogue.weights_loaded(session, 1, 0)
    assert dialogue.leases[1] == dialogue.leases[2] > former


def test_what_a_worker_has_built_before_it_was_told_otherwise_is_ignored() -> None:
    dialogue = training_rows(1)
    dialogue.goes_by(SHARE_AFTER, 1)
    dialogue.arrives(2)
    assert dialogue.told == {1: StageRun(0, 1), 2: StageRun(1, 1)}
    dialogue.builds(2)
    late = StageRun(0, 2)
    ready = pb.Ready(
        job="a", layout_hash=dialogue.layout.hash, elements=dialogue.layout.elements, fingerprint=FINGERPRINT,
        first_stage=late.first, stages=late.count, build=dialogue.orders[1] - 1,
        parts=[pb.LayoutPart(elements=dialogue.layout.elements)],
    )  # fmt: skip
    assert dialogue.says(1, ready) == []
    assert state_of(dialogue)["w1"] == "building stage 0"
    dialogue.weights_loaded(1, 1, 0)
    assert "row" not in " ".join(dialogue.builds(2)), "worker 1 is not ready"
    assert dialogue.builds(1)[1:2] == ["1 <- row of stage 0 w1, stage 1 w2"]
    assert not dialogue.status().workers[0].step and not dialogue.leases, "nor has it the weights"


def test_what_a_worker_has_built_of_an_earlier_order_for_the_same_stages_is_ignored() -> None:
    """Test a worker that drops its build for other stages, and is told the first ones again before it has reported."""
    dialogue = training_rows(1)
    dialogue.goes_by(SHARE_AFTER, 1)
    both, first_order = dialogue.told[1], dialogue.orders[1]
    dialogue.arrives(2)
    lost(dialogue, 2)
    dialogue.goes_by(SHARE_AFTER, 1)
    assert dialogue.told[1] == both and dialogue.orders[1] > first_order
    assert dialogue.builds(1, build=first_order) == [] and state_of(dialogue)["w1"] == "building stages 0-1"
    assert dialogue.builds(1)[-1] == "1 <- row of stages 0-1 w1"


# ---- workers that come back ----


def test_after_a_restart_of_the_aggregator_all_workers_get_the_stages_that_they_have_built() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=2)
    dialogue.optimizer()
    dialogue.stands(1, 0)
    assert dialogue.arrives(1, StageRun(0, 1)) == []
    assert dialogue.arrives(3, StageRun(0, 1)) == ["1 <- join stage 0"], "one with stage 1 may be on its way"
    assert dialogue.arrives(4, StageRun(1, 1)) == ["4 <- join stage 1"]
    assert dialogue.arrives(2, StageRun(1, 1)) == ["3 <- join stage 0", "2 <- join stage 1"]


def test_a_worker_takes_other_stages_than_it_has_built_once_no_more_workers_come() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=2)
    dialogue.arrives(1, StageRun(0, 1))
    assert dialogue.arrives(2, StageRun(0, 1)) == ["1 <- join stage 0"]
    assert dialogue.goes_by(STANDARD_TIMEOUTS.retry + 2.5, 1, 2) == ["2 <- join stage 1"]


def test_stages_of_another_job_do_not_count() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=2)
    dialogue.arrives(1)
    dialogue.hello(2, pipeline_address="host2:1", job="z", first_stage=0, stages=1)
    assert dialogue.give(ev.DataStreamOpened(2)) == ["1 <- join stage 0", "2 <- join stage 1"]


# ---- other code ----


def test_workers_of_new_code_wait_while_those_of_the_old_code_build_other_stages() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=2)
    dialogue.optimizer()
    dialogue.stands(1, 0)
    dialogue.weights(1, 0, 0, 1)
    dialogue.arrives(1)
    dialogue.arrives(2)
    for session in (1, 2):
        dialogue.builds(session, holds=(1, 0), fingerprint={"code": "old"})
    dialogue.checkpoint(1, 0)
    lost(dialogue, 2)
    dialogue.arrives(3)
    assert dialogue.builds(3, fingerprint={"code": "new"}) == ["save a running"]
    assert state_of(dialogue) == {"w1": "ready stage 0", "w3": "waiting"}
    assert has_facts(waits_for(dialogue), "waits for a worker for stage 1 of 2 (w3: its code is new")
    dialogue.goes_by(SHARE_AFTER, 1, 3)
    assert dialogue.told[1] == StageRun(0, 2)
    dialogue.goes_by(2 * STANDARD_TIMEOUTS.comeback, 1, 3)
    assert not dialogue.job().code_changes, "worker 1 builds for long, but it is there"
    dialogue.builds(1, holds=(1, 0), fingerprint={"code": "old"})
    assert dialogue.leases[1]


def test_a_row_of_new_code_goes_on_once_no_worker_of_the_old_code_is_left() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=2)
    dialogue.optimizer()
    dialogue.stands(1, 0)
    dialogue.arrives(1)
    dialogue.arrives(2)
    for session in (1, 2):
        dialogue.builds(session, fingerprint={"code": "old"})
    for session in (1, 2):
        lost(dialogue, session)
        dialogue.arrives(session + 2)
        dialogue.builds(session + 2, fingerprint={"code": "new"})
    dialogue.checkpoint(1, 0)
    orders = dialogue.goes_by(2 * STANDARD_TIMEOUTS.comeback, 3, 4)
    assert [(each.before, each.after) for each in dialogue.job().code_changes] == [("old", "new")]
    assert "optimizer <- Open" in orders
    assert orders[-1] == "4 <- join stage 1", "both had built the only stage that was free for new code"
    orders = dialogue.builds(4, fingerprint={"code": "new"})
    assert orders[0] == "3 <- row of stage 0 w3, stage 1 w4"


# ---- stages that don't fit ----


def test_a_worker_gets_no_more_stages_than_fit() -> None:
    dialogue = training_rows(1, 2, stages=4)
    dialogue.goes_by(SHARE_AFTER, 1, 2)
    assert dialogue.told == {1: StageRun(0, 2), 2: StageRun(2, 2)}
    assert too_large(dialogue, 2) == ["1 <- join stages 0-2", "2 <- join stage 3"]
    assert too_large(dialogue, 1) == ["1 <- join stages 0-1"]
    assert has_facts(
        waits_for(dialogue), "waits for a worker for stage 2 of 4 ... most 2 fit w1; at most 1 fit w2"
    )
    assert dialogue.arrives(3) == ["3 <- join stage 2"]


def test_stages_that_a_worker_was_told_before_its_last_ones_say_nothing_of_these() -> None:
    dialogue = training_rows(1, 2, stages=4)
    dialogue.goes_by(SHARE_AFTER, 1, 2)
    former = dialogue.told[2]
    assert too_large(dialogue, 2)
    assert dialogue.told[2] == StageRun(3, 1)
    assert too_large(dialogue, 2, former) == []
    assert dialogue.told[2] == StageRun(3, 1), "else it would be refused, since not even one stage fits"


def test_a_worker_that_not_even_one_stage_fits_is_refused() -> None:
    dialogue = training_rows(1, 2)
    dialogue.arrives(3)
    lost(dialogue, 2)
    assert dialogue.told[3] == StageRun(1, 1)
    assert has_facts(" ".join(too_large(dialogue, 3)), "3 <- leave: they take 9 GB")
    assert has_facts(waits_for(dialogue), "worker for stage 1 of 2 (w3: they take 9 GB")
    assert dialogue.job().state == dialogue.core.jobs.records["a"].job.state, "the job waits"


def test_a_worker_that_others_cannot_reach_has_all_stages_or_none() -> None:
    dialogue = training_rows(1, 2)
    dialogue.hello(3)
    assert dialogue.give(ev.DataStreamOpened(3)) == ["3 <- join stages 0-1"]
    assert dialogue.builds(3, holds=(1, 0)) == ["3 <- row of stages 0-1 w3"]
    assert too_large(dialogue, 3, StageRun(0, 2)) == []
    (state,) = (each for each in dialogue.status().workers if each.name == "w3")
    assert state.state == "spare" and has_facts(
        state.detail, "no other worker can reach it ... 2 stages don't fit its mesh"
    )
    lost(dialogue, 2)
    assert has_facts(waits_for(dialogue), "stage 1 of 2 (w3: ... no other worker can reach it")


# ---- workers that do not fit together, or take no part ----


def test_parts_that_do_not_cover_the_layout_compute_nothing() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=2)
    dialogue.optimizer()
    dialogue.stands(1, 0)
    dialogue.arrives(1)
    dialogue.arrives(2)
    dialogue.builds(1, holds=(1, 0))
    dialogue.builds(2, holds=(1, 0), parts=[pb.LayoutPart(offset=9, elements=9)])
    assert has_facts(waits_for(dialogue), "fit together ... don't meet at element 262144 of 1048571")
    assert not dialogue.leases


def test_a_worker_whose_parts_are_none_ends_no_job_before_others_could_come() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=2)
    dialogue.optimizer()
    dialogue.stands(1, 0)
    dialogue.arrives(1)
    dialogue.goes_by(SHARE_AFTER, 1)
    orders = dialogue.builds(1, holds=(1, 0), parts=[pb.LayoutPart(offset=1 << 40, elements=9)], elements=9)
    assert any(each.startswith("1 <- leave") for each in orders)
    dialogue.goes_by(STANDARD_TIMEOUTS.comeback / 2, 1)
    assert dialogue.job().state == RUNNING
    dialogue.goes_by(STANDARD_TIMEOUTS.comeback, 1)
    assert dialogue.run is None, "nobody came"


def test_a_refused_worker_makes_room_for_a_spare() -> None:
    dialogue = training_rows(1, 2, 3)
    lost(dialogue, 2)
    orders = dialogue.builds(3, fingerprint={"blas": "Zen"})
    assert has_facts(orders[1], "3 <- leave: fingerprint differs")
    assert dialogue.arrives(4) == ["4 <- join stage 1"]


def test_a_worker_whose_mesh_fails_makes_room_and_is_a_spare_once_it_is_repaired() -> None:
    dialogue = training_rows(1, 2, 3)
    dialogue.sent_weights(1)
    unfit = pb.Failure(job="a", reason="the mesh hangs", retries=True)
    assert dialogue.says(1, unfit) == ["1 <- revoke", "2 <- revoke", "3 <- join stage 0"]
    assert state_of(dialogue)["w1"] == "unfit"
    dialogue.builds(1)
    assert state_of(dialogue)["w1"] == "spare"
    assert not dialogue.sent_weights(1), "a spare needs no weights"


def test_a_job_that_ends_leaves_no_rows() -> None:
    dialogue = training_rows(1, 2)
    assert dialogue.cancel()[-4:] == [
        "1 <- leave: cancelled by request",
        "2 <- leave: cancelled by request",
        "optimizer <- Close",
        "drop all",
    ]
    dialogue.submit("b")
    assert [each.stages for each in dialogue.status().workers] == [0, 0]
