"""Dialogues about jobs of which workers say different things. Each line is one effect of the core."""

from __future__ import annotations

import pytest

from aggregator.core import events as ev
from aggregator.core.setting_aside import PROBATION_SECONDS
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, RUNNING
from services.protocol.plan import ParameterCount
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import Dialogue, layout_of, layout_ref
from tests.support.dialogues.rows import RowDialogue
from tests.support.facts import has_facts

EMPTY, RECEIVING = pb.OptimizerStatus.EMPTY, pb.OptimizerStatus.RECEIVING


def comes(
    dialogue: Dialogue, session: int, *, voice: bool = True, blas: str = "x", chunks: int = 1
) -> list[str]:
    """Connect a worker that says something of the job."""
    dialogue.hello(session, voice=f"w{session}" if voice else "")
    dialogue.give(ev.DataStreamOpened(session))
    return dialogue.ready(session, blas=blas, layout=layout_of(chunks))


def begun(**plan: int) -> Dialogue:
    """Return a job whose optimizer has no weights yet."""
    dialogue = Dialogue()
    dialogue.submit(**plan)
    dialogue.optimizer()
    dialogue.stands(1, 0, state=EMPTY)
    return dialogue


def states(dialogue: Dialogue) -> dict[str, str]:
    """Return the workers' states."""
    return {each.name: each.state for each in dialogue.status().workers}


def last_open(dialogue: Dialogue) -> pb.Open:
    """Return what a new connection to the optimizer is told."""
    effects = dialogue.core.handle(ev.OptimizerConnected("opt"), dialogue.clock)
    body = effects[-1].body if isinstance(effects[-1], ev.ToOptimizer) else None
    assert isinstance(body, pb.Open)
    return body


def liar_first(*, chunks: int = 1, blas: str = "liar's") -> Dialogue:
    """Return a job whose first worker is a liar that makes initial weights, and that has refused an honest one."""
    dialogue = begun()
    assert comes(dialogue, 1, blas=blas, chunks=chunks)[-1] == "1 <- initialise"
    dialogue.says(1, pb.Description(job="a", lease=dialogue.leases[1], layout=layout_ref(layout_of(chunks))))
    (*_, order) = comes(dialogue, 2)
    assert order.startswith("2 <- leave: ")
    assert states(dialogue) == {"w1": "computing", "w2": "refused"}
    return dialogue


@pytest.mark.parametrize(("chunks", "blas"), [(1, "liar's"), (3, "x")], ids=["fingerprint", "layout"])
def test_honest_workers_go_on_when_a_first_liar_has_left(chunks: int, blas: str) -> None:
    dialogue = liar_first(chunks=chunks, blas=blas)
    assert dialogue.give(ev.WorkerLost(1, "gone")) == ["2 <- join"]
    orders = dialogue.ready(2, blas="x")
    assert orders == ["save a running", "drop all", "optimizer <- Open", "2 <- join"]
    assert has_facts(dialogue.notes[-1], "begins again with what worker w2 says of it")
    assert dialogue.saved["a"].job.void_generation == 1
    dialogue.ready(2, blas="x")
    assert dialogue.stands(1, 0) == [], "the liar's weights, which the optimizer has not forgotten yet"
    assert dialogue.stands(2, 0, state=EMPTY) == ["save a running", "drop all", "2 <- initialise"]
    assert dialogue.stands(3, 0)[-1] == "optimizer <- SendWeights 3.0"
    assert not dialogue.job().excluded, "it may have other libraries, and mean no harm"


def test_the_optimizer_is_told_that_not_even_the_initial_weights_count() -> None:
    dialogue = liar_first()
    dialogue.give(ev.WorkerLost(1, "gone"))
    dialogue.ready(2, blas="x")
    order = last_open(dialogue)
    assert (order.generation, list(order.void)) == (1, [pb.Void(generation=1)])
    dialogue.checkpoint(1, 0)
    assert not dialogue.job().checkpoint, "it was on its way"


def test_weights_of_the_same_worker_go_on_when_it_comes_back() -> None:
    dialogue = begun()
    comes(dialogue, 1)
    dialogue.stands(1, 0, state=RECEIVING)
    dialogue.give(ev.WorkerLost(1, "gone"))
    dialogue.hello(2, "w1", voice="w1")
    dialogue.give(ev.DataStreamOpened(2))
    assert dialogue.ready(2, blas="x") == ["2 <- initialise"]
    assert not dialogue.job().void_generation


def test_after_a_commit_a_claim_stays_without_its_worker() -> None:
    dialogue = liar_first()
    dialogue.stands(1, 0)
    assert "save a running" in dialogue.commits(1, 0)
    assert dialogue.saved["a"].job.claims[0].bound
    assert dialogue.give(ev.WorkerLost(1, "gone")) == []
    assert states(dialogue) == {"w2": "refused"} and dialogue.job().state == RUNNING
    assert has_facts(dialogue.describe_wait(), "w2 (fingerprint differs ... `tiermesh trust`")


@pytest.mark.parametrize(("chunks", "blas"), [(1, "liar's"), (3, "x")], ids=["fingerprint", "layout"])
def test_status_says_that_a_person_can_overrule_a_first_liar_of_a_job_that_wants_two(
    chunks: int, blas: str
) -> None:
    """Nothing is a voice without bound certificates, so the first claim counts while its worker is there."""
    dialogue = begun(min_workers=2)
    comes(dialogue, 1, voice=False, blas=blas, chunks=chunks)
    comes(dialogue, 2, voice=False)
    waiting = dialogue.describe_wait()
    assert has_facts(waiting, "1 of the 2 wanted ... missing: w2 ( ... `tiermesh trust`")
    assert "2 <- initialise" not in dialogue.trusts("w2")
    comes(dialogue, 3, voice=False)
    dialogue.ready(2, blas="x")
    assert dialogue.stands(2, 0, state=EMPTY)[-1] == "2 <- initialise"


def test_a_worker_that_says_what_can_not_be_claims_nothing_any_more() -> None:
    dialogue = Dialogue()
    dialogue.submit(parameters=ParameterCount(layout_of(1).elements, ""))
    dialogue.optimizer()
    comes(dialogue, 1, blas="liar's")
    dialogue.says(1, pb.Ready(job="a", build=1, layout_hash="0" * 64, elements=7))
    comes(dialogue, 2)
    dialogue.stands(1, 0, state=EMPTY)
    dialogue.ready(2, blas="x")
    assert states(dialogue) == {"w1": "refused", "w2": "computing"}


def test_a_second_voice_binds_a_claim_before_any_commit() -> None:
    dialogue = begun()
    comes(dialogue, 1)
    comes(dialogue, 2)
    for session in (1, 2):
        dialogue.give(ev.WorkerLost(session, "gone"))
    assert comes(dialogue, 3, blas="liar's")[-1].startswith("3 <- leave: ")


# ---- before the first lease ----


def tied() -> Dialogue:
    """Return a job of which two voices say two things before anything was leased."""
    dialogue = Dialogue()
    dialogue.submit()
    comes(dialogue, 1)
    assert comes(dialogue, 2, blas="y") == ["save a running"]
    dialogue.optimizer()
    assert dialogue.stands(1, 0, state=EMPTY) == ["save a running", "drop all"], "nothing is leased"
    return dialogue


def test_two_voices_that_disagree_before_the_first_lease_wait_for_a_person() -> None:
    dialogue = tied()
    assert states(dialogue) == {"w1": "ready", "w2": "waiting"}
    waiting = dialogue.describe_wait()
    assert has_facts(
        waiting, "w2 disagrees with w1: blas is 'y', the job's is 'x' ... tiermesh trust a WORKER"
    )
    assert dialogue.goes_by(PROBATION_SECONDS + 3, 1, 2) == ["save a running"], "its start no longer counts"
    assert dialogue.goes_by(3 * STANDARD_TIMEOUTS.comeback, 1, 2) == []


@pytest.mark.parametrize(("trusted", "other"), [(1, 2), (2, 1)])
def test_a_person_decides_for_one_of_two(trusted: int, other: int) -> None:
    dialogue = tied()
    orders = dialogue.trusts(f"w{trusted}")
    if trusted == 2:
        assert orders == ["drop all", "optimizer <- Open", "1 <- join", "2 <- join"], (
            "weights may be under way"
        )
        dialogue.ready(1)
        dialogue.ready(2, blas="y")
        orders = dialogue.stands(2, 0, state=EMPTY)
    assert orders[-1] == f"{trusted} <- initialise"
    if trusted == 1:
        assert orders[0] == "2 <- leave: fingerprint differs: blas is 'y', the job's is 'x' " + (
            "(`exact: false` in the job would accept it, `tiermesh trust` overrules the job's)"
        )
    assert states(dialogue) == {f"w{trusted}": "computing", f"w{other}": "refused"}
    assert not dialogue.job().excluded


def test_a_third_voice_decides_too() -> None:
    dialogue = tied()
    comes(dialogue, 3, blas="y")
    for session, blas in ((1, "x"), (2, "y"), (3, "y")):
        dialogue.ready(session, blas=blas)
    dialogue.stands(2, 0, state=EMPTY)
    assert states(dialogue) == {"w1": "refused", "w2": "computing", "w3": "ready"}


@pytest.mark.parametrize(("leaves", "stays"), [(1, 2), (2, 1)])
def test_one_of_two_that_leaves_lets_the_other_go_on(leaves: int, stays: int) -> None:
    dialogue = tied()
    dialogue.give(ev.WorkerLost(leaves, "gone"))
    dialogue.ready(stays, blas="xy"[stays - 1])
    dialogue.stands(2, 0, state=EMPTY)
    assert states(dialogue) == {f"w{stays}": "computing"}


def test_a_contention_outlives_the_aggregator() -> None:
    before = tied()
    dialogue = Dialogue(epoch=4, records=before.saved.values())
    dialogue.optimizer()
    dialogue.stands(1, 0, state=EMPTY)
    comes(dialogue, 1)
    assert states(dialogue) == {"w1": "ready"}, "w2 may come back"
    dialogue.goes_by(STANDARD_TIMEOUTS.comeback - 10, 1)
    assert states(dialogue) == {"w1": "ready"}
    dialogue.goes_by(20, 1)
    assert states(dialogue) == {"w1": "computing"}


def test_what_a_dead_aggregator_knew_of_a_claimant_holds_until_it_does_not_come_back() -> None:
    before = liar_first()
    dialogue = Dialogue(epoch=4, records=before.saved.values())
    dialogue.optimizer()
    dialogue.stands(1, 0, state=RECEIVING)
    dialogue.give(ev.Ticked())
    assert comes(dialogue, 2)[-1].startswith("2 <- leave: ")
    assert "2 <- join" in dialogue.goes_by(STANDARD_TIMEOUTS.comeback + 10, 2)
    assert "optimizer <- Open" in dialogue.ready(2, blas="x")


# ---- a person overrules ----


def overruled() -> Dialogue:
    """Return a job at step 1 of generation 1 whose one worker was overruled."""
    dialogue = liar_first(chunks=3, blas="x")
    dialogue.layout = layout_of(3)
    dialogue.stands(1, 0)
    dialogue.commits(1, 0)
    dialogue.checkpoint(1, 1)
    dialogue.layout = layout_of(1)
    return dialogue


def test_a_person_overrules_a_worker_and_the_job_begins_again_without_it() -> None:
    dialogue = overruled()
    orders = dialogue.trusts("w2")
    assert orders[0].startswith("1 <- leave: overruled: a person trusts worker w2 instead")
    assert orders[1:] == ["drop all", "optimizer <- Open", "2 <- join"]
    job = dialogue.saved["a"].job
    assert [each.worker for each in job.excluded] == ["w1"] and (job.step, job.checkpoint) == (0, "")
    assert last_open(dialogue).void[0] == pb.Void(generation=1)
    dialogue.ready(2, blas="x")
    assert dialogue.stands(1, 1) == dialogue.commits(1, 1) == [], "of the generation that is void"
    assert dialogue.stands(2, 0, state=EMPTY)[-1] == "2 <- initialise"
    dialogue.give(ev.WorkerLost(1, "gone"))
    dialogue.hello(3, "w1", voice="w1")
    assert states(dialogue)["w1"] == "refused"
    assert "1 <- " not in " ".join(dialogue.stands(2, 0)) and dialogue.job().generation == 2


def test_a_decision_holds_after_a_restart_before_the_optimizer_knew_of_it() -> None:
    before = overruled()
    before.core.optimizer = None
    before.trusts("w2")
    dialogue = Dialogue(epoch=4, records=before.saved.values())
    assert last_open(dialogue).void[0] == pb.Void(generation=1)
    assert dialogue.stands(1, 1) == []
    assert comes(dialogue, 1, chunks=3) == []
    assert states(dialogue) == {"w1": "refused"}
    comes(dialogue, 2)
    assert dialogue.stands(2, 0, state=EMPTY)[-1] == "2 <- initialise"


def test_a_job_that_waits_for_its_start_is_decided_too() -> None:
    record = overruled().saved["a"]
    record.job.starts = 5
    dialogue = Dialogue(epoch=4, records=[record])
    dialogue.give(ev.Ticked())
    assert dialogue.run is None
    assert dialogue.trusts("w2") == []
    assert [each.worker for each in dialogue.job().excluded] == ["w1"]


# ---- workers that contradict themselves ----


def test_a_worker_that_describes_another_layout_than_it_claimed_is_excluded_and_the_job_goes_on() -> None:
    dialogue = begun()
    comes(dialogue, 1)
    comes(dialogue, 2, voice=False, blas="y")
    described = pb.Description(job="a", lease=dialogue.leases[1], layout=layout_ref(layout_of(3)))
    orders = dialogue.says(1, described)
    assert orders[1].startswith("1 <- leave: contradicts itself: its Description has a layout with hash")
    assert "optimizer <- Initialise" not in orders and orders[-1] == "2 <- join"
    assert [each.worker for each in dialogue.saved["a"].job.excluded] == ["w1"]
    assert dialogue.job().state == RUNNING
    dialogue.ready(2, blas="y")
    dialogue.ready(2, blas="y")
    assert dialogue.stands(2, 0, state=EMPTY)[-1] == "2 <- initialise"


def test_a_worker_whose_layout_has_another_size_than_it_said_is_excluded() -> None:
    dialogue = begun()
    dialogue.hello(1)
    dialogue.give(ev.DataStreamOpened(1))
    dialogue.says(
        1, pb.Ready(job="a", build=1, layout_hash=dialogue.layout.hash, elements=7, evaluation_batches=3)
    )
    comes(dialogue, 2)
    assert states(dialogue) == {"w1": "computing", "w2": "refused"}
    dialogue.stands(1, 0, state=RECEIVING)
    assert has_facts(dialogue.job().excluded[0].reason, "layout has 524283 elements, and it said 7")
    assert dialogue.job().state == RUNNING and states(dialogue)["w1"] == "refused"
    dialogue.ready(2)
    assert dialogue.stands(2, 0, state=EMPTY)[-1] == "2 <- initialise"


def test_weights_of_a_layout_that_nobody_claims_are_made_again() -> None:
    """As with a queue that was restored from a backup."""
    dialogue = begun()
    comes(dialogue, 1)
    dialogue.layout = layout_of(3)
    assert "optimizer <- Open" in dialogue.stands(1, 0)
    assert last_open(dialogue).void[0] == pb.Void(generation=1)


def test_weights_with_a_commit_count_whatever_workers_claim_after_a_restored_queue() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    comes(dialogue, 1, chunks=3)
    orders = dialogue.stands(1, 2)
    assert orders[1].startswith("1 <- leave: its model's layout hash")
    assert orders[-1] == "optimizer <- SendWeights 1.2" and dialogue.job().state == RUNNING
    dialogue.goes_by(STANDARD_TIMEOUTS.comeback + 5, 1)
    assert dialogue.job().state == FAILED


# ---- rows ----


def test_workers_of_a_row_share_a_claim_and_a_row_goes_on_after_a_liar() -> None:
    dialogue = RowDialogue()
    dialogue.submit(stages=2)
    dialogue.optimizer()
    dialogue.stands(1, 0, state=EMPTY)
    for session in (1, 2):
        dialogue.arrives(session)
    dialogue.builds(1, fingerprint={"blas": "liar's"})
    assert dialogue.builds(2)[-1].startswith("2 <- leave: ")
    dialogue.give(ev.WorkerLost(1, "gone"))
    dialogue.arrives(3)
    dialogue.goes_by(2 * STANDARD_TIMEOUTS.deaf, 2, 3)
    for session in (2, 3):
        if session in dialogue.told:
            dialogue.builds(session)
    for session in (2, 3):
        dialogue.builds(session)
    orders = dialogue.stands(2, 0, state=EMPTY)
    assert orders[-2:] == ["2 <- initialise", "3 <- initialise"]
