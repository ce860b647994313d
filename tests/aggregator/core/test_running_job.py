"""Dialogues about a job, from its start to its end. Each line is one effect of the core; sessions are 1, 2, 3."""

from __future__ import annotations

import pytest

from aggregator.core import events as ev
from aggregator.core.aggregator import AggregatorCore, Clock
from aggregator.core.job_report import Record
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.jobs_pb2 import FAILED, QUEUED, Job
from protos.tensors_pb2 import GRADIENT, INITIAL_WEIGHTS, WEIGHTS, ChunkHeader, ChunkKind, Findings, NonFinite
from services.protocol.plan import EvaluationBatches, JobPlan, ParameterCount
from services.tensors.layout import MAX_ELEMENTS
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import FINGERPRINT, Dialogue, arrived, layout_ref, training
from tests.support.facts import has_facts

# ---- the making of the initial weights ----


def test_a_job_from_nothing_to_its_first_step() -> None:
    dialogue = Dialogue(chunks=2)
    assert dialogue.submit() == ["save a running"]
    assert dialogue.optimizer() == ["optimizer <- Open"]
    assert dialogue.hello(1) == ["1 <- welcome", "1 <- join"]
    assert dialogue.stands(1, 0, state=pb.OptimizerStatus.EMPTY) == ["save a running", "drop all"]
    assert dialogue.give(ev.DataStreamOpened(1)) == []
    assert dialogue.ready(1) == ["save a running", "1 <- initialise"]
    description = pb.Description(job="a", lease=dialogue.leases[1], layout=layout_ref(dialogue.layout))
    assert dialogue.says(1, description) == ["optimizer <- Initialise"]
    assert dialogue.stands(1, 0, state=pb.OptimizerStatus.RECEIVING) == ["drop all", "1 <- resend #0 #1"]
    assert dialogue.initial(1, 0) == ["keep 0 #0", "forward #0"]
    assert dialogue.initial(1, 1) == ["keep 0 #1", "forward #1"]
    assert dialogue.stands(1, 0) == ["save a running", "drop all", "optimizer <- SendWeights 1.0"]
    assert dialogue.weights(1, 0, 0) == ["store weights #0"]
    assert dialogue.sent_weights(1) == "1.0", "each chunk as soon as a plane has it"
    assert dialogue.weights(1, 0, 1) == ["store weights #1"]
    assert not dialogue.sent_weights(1)
    assert dialogue.weights_loaded(1, 1, 0) == ["save a running", "1 <- window 2", "1 <- train 0-3 of 1.0"]


def overstated(elements: int) -> tuple[Dialogue, pb.Ready]:
    """Return a cluster with a job of one exact size, and a Ready that says another."""
    dialogue = Dialogue()
    dialogue.submit(parameters=ParameterCount(dialogue.layout.elements, ""))
    dialogue.optimizer()
    dialogue.stands(1, 0, state=pb.OptimizerStatus.EMPTY)
    return dialogue, pb.Ready(job="a", build=1, layout_hash="x", elements=elements, fingerprint=FINGERPRINT)


@pytest.mark.parametrize("elements", [1, 300_000_000, 1 << 40, (1 << 64) - 1])
def test_a_worker_with_a_layout_of_another_size_is_refused_before_it_pins_anything(elements: int) -> None:
    dialogue, ready = overstated(elements)
    for session in (1, 2):
        dialogue.hello(session)
        dialogue.give(ev.DataStreamOpened(session))
    (line,) = dialogue.says(1, ready)
    assert line.startswith("1 <- leave: ")
    assert (
        f"{elements} elements, expected the {dialogue.layout.elements} parameters of the job's model" in line
    )
    assert dialogue.ready(2) == ["save a running", "2 <- initialise"]


@pytest.mark.parametrize("batches", [0, 2, 4, (1 << 32) - 1])
def test_a_worker_with_another_number_of_held_out_batches_than_the_submitter_s_is_refused(
    batches: int,
) -> None:
    dialogue = Dialogue()
    dialogue.submit(evaluation_batches=EvaluationBatches(3, ""))
    dialogue.optimizer()
    dialogue.stands(1, 0, state=pb.OptimizerStatus.EMPTY)
    for session in (1, 2):
        dialogue.hello(session)
        dialogue.give(ev.DataStreamOpened(session))
    ready = pb.Ready(
        job="a",
        build=1,
        layout_hash=dialogue.layout.hash,
        elements=dialogue.layout.elements,
        evaluation_batches=batches,
    )
    (line,) = dialogue.says(1, ready)
    assert has_facts(line, f"1 <- leave: it has {batches} held-out batches, expected the job's 3")
    assert dialogue.ready(2) == ["save a running", "2 <- initialise"]


def test_a_number_of_held_out_batches_ends_with_the_claim_that_says_it() -> None:
    dialogue = Dialogue()
    dialogue.submit(steps=1, micro_batches=1)
    dialogue.hello(1)
    dialogue.says(
        1,
        pb.Ready(
            job="a", build=1, layout_hash="x", elements=1, evaluation_batches=7, fingerprint=FINGERPRINT
        ),
    )
    dialogue.give(ev.WorkerLost(1, "gone"))
    dialogue.optimizer()
    dialogue.joins(2, holds=(1, 1))
    dialogue.stands(1, 1)
    assert dialogue.job().evaluation_batches == 3


def test_a_worker_that_describes_another_layout_leaves_its_lease_to_another_one() -> None:
    dialogue, _ = overstated(1)
    dialogue.joins(1)
    dialogue.joins(2)
    description = pb.Description(job="a", lease=dialogue.leases[1])
    assert dialogue.core.awaits_description(2, description) is None, "another worker has the lease"
    assert dialogue.core.awaits_description(1, pb.Description(job="a", lease=9)) is None
    parameters = dialogue.core.awaits_description(1, description)
    assert parameters == ParameterCount(dialogue.layout.elements, "")
    refused = dialogue.says(1, pb.Failure(job="a", reason=str(parameters.check(1 << 40))))
    assert refused[0].startswith("1 <- leave: the layout has 1099511627776 elements")
    assert refused[1:] == ["2 <- initialise"]


def test_an_optimizer_with_a_layout_of_another_size_fails_the_job() -> None:
    dialogue, _ = overstated(1)
    dialogue.joins(1)
    body = pb.OptimizerStatus(
        job="a", state=pb.OptimizerStatus.RECEIVING, generation=1, layout_hash="x", elements=1 << 40
    )
    lines = dialogue.give(ev.FromOptimizer(body))
    assert lines[0] == "save a failed"
    assert f"{1 << 40} elements, expected the {dialogue.layout.elements} parameters" in lines[1]


def test_a_job_that_the_optimizer_has_open_and_nobody_runs_is_closed_there() -> None:
    dialogue, _ = overstated(1)
    status = pb.OptimizerStatus(job="other", state=pb.OptimizerStatus.TRAINING, generation=1, step=3)
    (close,) = dialogue.core.handle(ev.FromOptimizer(status), dialogue.clock)
    assert close == ev.ToOptimizer(pb.Close(job="other", checkpoint=True))
    assert dialogue.give(ev.FromOptimizer(pb.Commit(job="other"))) == []


def test_a_queued_job_beyond_a_lowered_maximum_fails() -> None:
    plan = JobPlan(4, 4, parameters=ParameterCount(2_000, ""))
    record = Record(Job(id="a", name="a", state=QUEUED, steps=4), "{}", plan)
    core = AggregatorCore(
        name="agg", epoch=1, records=[record], heartbeat_seconds=5.0, tiers=2, max_parameters=1_000
    )
    saved = [each for each in core.handle(ev.Ticked(), Clock(1.0, 1.0)) if isinstance(each, ev.SaveJob)]
    assert [each.job.state for each in saved] == [FAILED]
    assert has_facts(saved[0].job.detail, "2000 parameters ... at most 1000 ... --max-parameters")


def test_the_worker_that_initialises_is_lost() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.joins(1)
    dialogue.joins(2)
    assert dialogue.stands(1, 0, state=pb.OptimizerStatus.EMPTY) == [
        "save a running",
        "drop all",
        "1 <- initialise",
    ]
    assert dialogue.give(ev.WorkerLost(1, "gone")) == ["2 <- initialise"]
    assert dialogue.says(1, pb.Description(job="a", lease=dialogue.leases[1])) == []


def test_an_optimizer_that_lost_everything_has_the_weights_made_again() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.joins(1)
    dialogue.stands(1, 0, state=pb.OptimizerStatus.EMPTY)
    assert dialogue.stands(2, 0, state=pb.OptimizerStatus.EMPTY) == [
        "save a running",
        "drop all",
        "1 <- revoke",
        "1 <- initialise",
    ]


def test_the_worker_that_initialises_stalls() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.joins(1)
    dialogue.joins(2)
    dialogue.stands(1, 0, state=pb.OptimizerStatus.EMPTY)
    assert dialogue.later(STANDARD_TIMEOUTS.stall + 1, 1, 2) == ["1 <- revoke", "2 <- initialise"]


# ---- a step ----


def test_a_step_of_two_workers() -> None:
    dialogue = training(1, 2)
    assert dialogue.chunk(2, 1, 0, 0, losses=(3.0, 5.0)) == ["keep 2-3 #0"]
    assert dialogue.chunk(1, 1, 0, 0, losses=(1.0, 3.0)) == [
        "keep 0-1 #0",
        "merge 0-1 + 2-3 #0",
        "forward #0",
    ]
    assert dialogue.commits(1, 0) == [
        "drop all",
        "1 <- window 1",
        "1 <- train 0-1 of 1.1",
        "2 <- window 1",
        "2 <- train 2-3 of 1.1",
    ], "they begin with the first of the weights"
    assert (dialogue.job().step, dialogue.job().loss) == (1, 3.0)
    assert dialogue.weights(1, 1, 0) == ["store weights #0"]
    assert dialogue.sent_weights(1) == dialogue.sent_weights(2) == "1.1"
    assert dialogue.weights_loaded(2, 1, 1) == dialogue.weights_loaded(1, 1, 1) == []


def test_stale_and_repeated_chunks_change_nothing() -> None:
    dialogue = training(1, 2)
    old = dialogue.leases[1]
    assert dialogue.chunk(1, 1, 0, 0) == ["keep 0-1 #0"]
    assert dialogue.chunk(1, 1, 0, 0) == [], "repeated"
    assert dialogue.chunk(1, 0, 0, 0) == [], "another generation"
    assert dialogue.chunk(1, 1, 3, 0) == [], "another step"
    assert dialogue.chunk(1, 1, 0, 0, lease=999) == [], "no such lease"
    assert dialogue.chunk(2, 1, 0, 0, lease=old) == [], "another worker's lease"
    assert dialogue.chunk(2, 1, 0, 0) == ["keep 2-3 #0", "merge 0-1 + 2-3 #0", "forward #0"]
    assert dialogue.chunk(2, 1, 0, 0) == [], "passed on already"
    dialogue.commits(1, 0)
    assert dialogue.chunk(1, 1, 0, 0, lease=old) == [], "committed already"


def test_a_worker_sends_no_weights_but_the_initial_ones_that_it_was_leased() -> None:
    dialogue = Dialogue(chunks=2)
    dialogue.submit()
    dialogue.optimizer()
    dialogue.joins(1)
    dialogue.joins(2)
    assert dialogue.stands(1, 0, state=pb.OptimizerStatus.EMPTY) == [
        "save a running",
        "drop all",
        "1 <- initialise",
    ]
    lease = dialogue.leases[1]
    epoch = dialogue.core.epoch

    def refused(session: int, kind: ChunkKind, lease: int) -> bool:
        header = ChunkHeader(job="a", epoch=epoch, kind=kind, lease=lease, generation=1)
        return dialogue.core.check_chunk(session, header) is not None

    assert not refused(1, INITIAL_WEIGHTS, lease)
    assert refused(1, INITIAL_WEIGHTS, lease + 1), "no such lease"
    assert refused(2, INITIAL_WEIGHTS, lease), "another worker's lease"
    assert refused(1, WEIGHTS, lease), "only the optimizer sends new weights"
    dialogue.stands(1, 0)
    assert refused(1, INITIAL_WEIGHTS, lease), "the optimizer has them already"
    running = training(1, 2)
    assert running.core.check_chunk(
        1, ChunkHeader(job="a", epoch=running.core.epoch, kind=INITIAL_WEIGHTS, lease=running.leases[1])
    ), "a lease of micro-batches is none of initial weights"


def test_a_worker_dies_after_some_of_its_chunks() -> None:
    dialogue = training(1, 2, chunks=3)
    dialogue.chunk(1, 1, 0, 2)
    dialogue.computed(2)
    assert dialogue.give(ev.WorkerLost(1, "gone")) == ["2 <- window 3", "2 <- train 0-1 of 1.0 only #0 #1"]
    assert dialogue.chunk(2, 1, 0, 1) == ["keep 0-1 #1"]


def test_a_busy_worker_gets_what_was_left_when_it_is_done() -> None:
    dialogue = training(1, 2)
    assert dialogue.give(ev.WorkerLost(1, "gone")) == []
    assert dialogue.computed(2) == ["2 <- window 1", "2 <- train 0-1 of 1.0"]


def test_nodes_of_a_lost_worker_are_shared_with_workers_that_finish_soon() -> None:
    dialogue = training(1, 2, 3, micro_batches=12)
    dialogue.now += 4.0
    assert dialogue.computed(1, seconds=4.0) == []
    assert dialogue.give(ev.WorkerLost(3, "gone")) == ["1 <- window 1", "1 <- train 8-9 of 1.0"]
    assert dialogue.computed(2, seconds=4.0) == ["2 <- window 1", "2 <- train 10-11 of 1.0"]


def test_orphans_are_not_kept_for_a_very_late_worker() -> None:
    dialogue = training(1, 2, 3, micro_batches=12)
    dialogue.now += 4.0
    dialogue.computed(1, seconds=4.0)
    dialogue.now += 20.0
    assert dialogue.give(ev.WorkerLost(3, "gone")) == ["1 <- window 1", "1 <- train 8-11 of 1.0"]


def test_orphans_kept_for_a_late_worker_go_to_an_idle_one() -> None:
    dialogue = training(1, 2, 3, micro_batches=12)
    dialogue.now += 4.0
    dialogue.computed(1, seconds=4.0)
    dialogue.give(ev.WorkerLost(3, "gone"))
    dialogue.now += 2.0
    assert dialogue.computed(1, seconds=2.0) == ["1 <- window 1", "1 <- train 10-11 of 1.0"]


def test_a_worker_that_stalls_is_relieved_by_an_idle_one_alone() -> None:
    dialogue = training(1, 2)
    assert dialogue.later(STANDARD_TIMEOUTS.stall + 1, 1, 2) == [], "no worker is idle"
    dialogue.computed(2)
    assert dialogue.later(1.0, 1, 2) == ["1 <- revoke", "2 <- window 1", "2 <- train 0-1 of 1.0"]
    assert dialogue.status().workers[0].state == "stalled"
    dialogue.weights_loaded(1, 1, 0)
    assert dialogue.status().workers[0].state == "ready", "it reported work again"


def test_the_window_moves_with_the_step() -> None:
    dialogue = training(1, chunks=20)
    lines = []
    for index in reversed(range(20)):
        lines += [line for line in dialogue.chunk(1, 1, 0, index) if "window" in line]
    assert lines == ["1 <- window 12", "1 <- window 16", "1 <- window 20"]


def test_chunks_that_are_read_in_the_workers_memory_need_no_window() -> None:
    dialogue = training(1, chunks=60)
    lines = []
    for index in reversed(range(60)):
        lines += [line for line in dialogue.chunk(1, 1, 0, index, in_place=True) if "window" in line]
    assert lines == ["1 <- window 60"], "sent with the first of them, and never again in this step"
    assert "1 <- window 60" in dialogue.commits(1, 0), "nor from then on"


def test_a_non_finite_gradient_is_skipped_and_reported() -> None:
    dialogue = training(1)
    dialogue.chunk(1, 1, 0, 0, losses=(1.0, 1.0, 1.0, 1.0))
    commit = pb.Commit(job="a", generation=1, step=0, applied=False)
    effects = dialogue.core.handle(ev.FromOptimizer(commit), dialogue.clock)
    assert [each.text for each in effects if isinstance(each, ev.Note)] == [
        "Step: 1, Loss: 1.0000000, Time: 0.00 ms (skipped: the gradient is not finite, though the gradients of all "
        "micro-batches are: their sum overflowed)"
    ]


def test_what_counts_in_a_step_goes_to_the_optimizer_and_no_count_of_too_many_tokens() -> None:
    dialogue = training(1, 2)
    (closed,) = [each for each in dialogue.chunk(1, 1, 0, 0, count=21) if "closed" in each]
    assert has_facts(closed, "findings.count is 21, expected 1 to 20, the tokens of 2 micro-batches")
    dialogue.give(ev.WorkerLost(1, "closed"))
    dialogue.chunk(2, 1, 0, 0, count=20)
    dialogue.computed(2)
    header = ChunkHeader(
        job="a", epoch=3, generation=1, lease=dialogue.leases[2], kind=GRADIENT, findings=Findings(count=19)
    )
    effects = dialogue.core.handle(arrived(2, dialogue.whole(header, 0)), dialogue.clock)
    (onward,) = [each for each in effects if isinstance(each, plane.FinishSum)]
    assert onward.header.findings.count == 39


@pytest.mark.parametrize("weights_first", [False, True])
def test_a_worker_with_a_gradient_that_is_not_finite_is_named(weights_first: bool) -> None:
    dialogue = training(1, 2)
    found = NonFinite(micro_batch=3, parameter="w")
    dialogue.chunk(2, 1, 0, 0, losses=(1.0, 1.0), non_finite=[found])
    last = ChunkHeader(
        job="a",
        epoch=dialogue.core.epoch,
        generation=1,
        lease=dialogue.leases[1],
        kind=GRADIENT,
        findings=Findings(losses=(1.0, 1.0), count=1),
    )
    effects = dialogue.core.handle(arrived(1, dialogue.whole(last, 0)), dialogue.clock)
    (onward,) = [each.header for each in effects if isinstance(each, plane.FinishSum)]
    assert list(onward.findings.non_finite) == [NonFinite(micro_batch=3, parameter="w", worker="w2")]
    if weights_first:
        dialogue.weights(1, 1, 0)
    commit = pb.Commit(job="a", generation=1, step=0, applied=False, non_finite=onward.findings.non_finite)
    dialogue.give(ev.FromOptimizer(commit))
    why = "the gradient is not finite: worker w2, micro-batch 3, parameter w"
    assert dialogue.notes[-1] == f"Step: 1, Loss: 1.0000000, Time: 0.00 ms (skipped: {why})"
    assert dialogue.job().skipped == f"step 1: {why}"


# ---- evaluation, checkpoints, the end ----


def test_a_worker_dies_or_stalls_while_it_evaluates() -> None:
    dialogue = training(1, 2, step=2, evaluate_every=2)
    dialogue.evaluated(2, 1, 2, (1, 2.0))
    dialogue.evaluated(2, 1, 2, (2, 2.0))
    assert dialogue.later(STANDARD_TIMEOUTS.stall + 1, 1, 2) == ["1 <- revoke", "2 <- evaluate 0 of 1.2"]
    assert dialogue.give(ev.WorkerLost(2, "gone")) == ["1 <- evaluate 0 of 1.2"]


def test_a_missed_checkpoint_is_shown_until_the_next_one() -> None:
    dialogue = training(1, step=2)
    missed = pb.CheckpointMissed(job="a", generation=1, step=2, reason="disk full")
    assert dialogue.give(ev.FromOptimizer(missed)) == ["save a running"]
    assert has_facts(dialogue.job().detail, "step 2 ... disk full")
    assert dialogue.describe_wait().endswith(dialogue.job().detail)
    dialogue.checkpoint(1, 3)
    assert dialogue.job().detail == ""
    assert "disk full" not in dialogue.describe_wait()


def test_a_job_whose_last_checkpoint_is_being_written_waits_for_the_optimizer() -> None:
    dialogue = training(1, step=4)
    for index in range(3):
        dialogue.evaluated(1, 1, 4, (index, 1.0))
    wait = dialogue.describe_wait()
    assert has_facts(wait, "optimizer ... checkpoint ... step 4")


def test_an_optimizer_that_cannot_go_on_fails_the_job() -> None:
    dialogue = training(1)
    lines = dialogue.give(ev.FromOptimizer(pb.Failure(job="a", reason="disk full")))
    assert lines == [
        "save a failed",
        "1 <- leave: optimizer opt: disk full",
        "optimizer <- Close",
        "drop all",
    ]


def test_an_optimizer_whose_layout_is_damaged_fails_the_job() -> None:
    dialogue = training(1)
    elements = MAX_ELEMENTS + 1
    body = pb.OptimizerStatus(
        job="a", state=pb.OptimizerStatus.TRAINING, generation=2, step=1, layout_hash="x", elements=elements
    )
    lines = dialogue.give(ev.FromOptimizer(body))
    assert lines[0] == "save a failed"
    assert f"the optimizer: the layout has {elements} elements, expected at most" in lines[1]


def test_a_stall_is_relative_to_the_measured_speed() -> None:
    """Check that a worker that needs 200 s for each of 4 micro-batches has not stalled after 600 s."""
    dialogue = training(1)
    dialogue.goes_by(800.0, 1)
    dialogue.computed(1, seconds=800.0)
    dialogue.chunk(1, 1, 0, 0)
    dialogue.commits(1, 0)
    dialogue.weights_loaded(1, 1, 1)
    dialogue.joins(2, holds=(1, 1))
    assert dialogue.goes_by(STANDARD_TIMEOUTS.stall + 1, 1, 2) == [], (
        "the other is idle, but 5 times 800 s are not over"
    )
    assert any("1 <- revoke" in line for line in dialogue.goes_by(5 * 800.0 - STANDARD_TIMEOUTS.stall, 1, 2))
