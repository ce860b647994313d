"""External jobs: their workers are those that processes have joined for them, and these serve nothing else."""

from __future__ import annotations

from aggregator.core import events as ev
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, PAUSED, RUNNING, SUCCEEDED
from tests.support.dialogues.aggregator import Dialogue, layout_of


def with_external(**plan: object) -> Dialogue:
    """Return a cluster with an external job a."""
    dialogue = Dialogue()
    dialogue.optimizer()
    dialogue.submit("a", external=True, **plan)
    return dialogue


def join(dialogue: Dialogue, session: int, job: str = "a") -> list[str]:
    """Connect a worker that a process has joined for a job."""
    lines = dialogue.hello(session, external_job=job)
    return lines + dialogue.give(ev.DataStreamOpened(session))


def test_an_external_job_gets_the_workers_that_name_it_and_no_others() -> None:
    dialogue = with_external()
    dialogue.submit("b")
    dialogue.hello(1)
    assert dialogue.core.members[1].job == "b"
    join(dialogue, 2)
    assert dialogue.core.members[2].job == "a"
    join(dialogue, 3)
    dialogue.cancel("a")
    assert dialogue.core.members[3].job == "", "it stays idle, though job b could use it"


def test_status_says_that_an_external_job_waits_for_a_process() -> None:
    dialogue = with_external()
    dialogue.hello(1)
    dialogue.later(1, 1)
    assert dialogue.job("a").waiting == "waits for a process to join"
    dialogue.submit("b", external=True, min_workers=2)
    assert "w1 (no process has joined it for the job)" in dialogue.core.assignments.waits["b"].reason


def test_a_process_is_told_how_its_job_ended() -> None:
    dialogue = with_external()
    join(dialogue, 1)
    run = dialogue.core.runs["a"]
    run.end(SUCCEEDED, "finished 4 steps")
    leaves = [
        effect.body
        for effect in dialogue.core.handle(ev.Ticked(), dialogue.clock)
        if isinstance(effect, ev.ToWorker)
    ]
    assert any(each.final and each.succeeded for each in leaves if isinstance(each, pb.Leave))


def test_a_process_that_joins_for_no_live_or_external_job_is_sent_away() -> None:
    dialogue = with_external()
    dialogue.submit("b")
    assert any("model_type is not external" in line for line in join(dialogue, 1, "b"))
    assert any("job c: not queued, running or paused" in line for line in join(dialogue, 2, "c"))
    dialogue.cancel("a")
    assert any("job a: cancelled" in line for line in join(dialogue, 3))


def test_one_that_waits_for_a_paused_job_hears_of_its_end() -> None:
    dialogue = with_external()
    dialogue.pause("a")
    dialogue.later(1)
    assert dialogue.job("a").state == PAUSED
    assert not any("leave" in line for line in join(dialogue, 1)), "it waits"
    assert dialogue.status().workers[0].detail == "its process waits for job a"
    dialogue.cancel("a")
    assert any(line.startswith("1 <- leave: job a: cancelled") for line in dialogue.later(1, 1))


def test_a_refused_process_does_not_end_the_job() -> None:
    """Another one may join at any time; and what the refused one is told names the job's layout."""
    dialogue = with_external()
    join(dialogue, 1)
    dialogue.ready(1)
    join(dialogue, 2)
    effects = dialogue.core.handle(
        ev.FromWorker(
            2,
            dialogue.core.epoch,
            pb.Ready(
                job="a",
                build=1,
                layout_hash=layout_of(2).hash,
                elements=layout_of(2).elements,
                evaluation_batches=3,
                fingerprint={"backend": "emulator", "blas": "SkylakeX"},
            ),
        ),
        dialogue.clock,
    )
    (leave,) = (each.body for each in effects if isinstance(each, ev.ToWorker) and each.session == 2)
    assert leave.final and not leave.succeeded and leave.layout_hash == dialogue.layout.hash
    dialogue.give(ev.WorkerLost(1, "the link broke"))
    dialogue.give(ev.WorkerLost(2, "it was refused"))
    join(dialogue, 3)
    dialogue.says(3, pb.Failure(job="a", reason="process x has ended"))
    dialogue.goes_by(60, 3)
    assert dialogue.job("a").state == RUNNING != FAILED


def test_a_job_without_held_out_batches_is_not_evaluated() -> None:
    from services.protocol.plan import EvaluationBatches, JobPlan

    plan = JobPlan(4, 4, evaluate_every=2, evaluation_batches=EvaluationBatches(0, ""))
    assert not any(plan.evaluates_at(step) for step in range(5)) and not plan.evaluations_after(0)
