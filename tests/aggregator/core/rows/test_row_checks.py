"""Dialogues about verification with rows: another row repeats a micro-batch, the first wrong pass names a worker."""

from __future__ import annotations

from protos import cluster_pb2 as pb
from protos.tensors_pb2 import Findings
from tests.support.dialogues.rows import RowDialogue, training_rows
from tests.support.facts import has_facts

PASSES_OF_STAGE = {0: (0, 3), 1: (1, 2)}
"""Places of the forward and backward pass of each of two stages."""


def checked(*workers: int, micro_batches: int = 2) -> RowDialogue:
    """Return workers in the first step of a job that checks every micro-batch."""
    return training_rows(*workers, micro_batches=micro_batches, verify_fraction=1.0, on_faulty="go_on")


def reports(dialogue: RowDialogue, session: int, *micro_batches: int, wrong_from: int = 4) -> list[str]:
    """Report a worker's part of its newest lease, whose passes are wrong from a place on."""
    sums = [
        pb.Checksum(
            micro_batch=each, place=place, crc32c=place if place < wrong_from else 100 * session + place
        )
        for each in micro_batches
        for place in PASSES_OF_STAGE[dialogue.told[session].first]
    ]
    findings = Findings(count=dialogue.told[session].first)  # the last stage counts 1
    computed = pb.Computed(
        job="a", lease=dialogue.leases[session], seconds=1.0, checksums=sums, findings=findings
    )
    return dialogue.says(session, computed)


def row_of(dialogue: RowDialogue, session: int) -> list[int]:
    """Return the sessions of the workers of a row, which is known by that of the first one."""
    run = dialogue.run
    assert run is not None
    row = run.rows.find(dialogue.core.members[session])
    assert row is not None
    return [seat.worker for seat in row.seats]


def test_another_row_repeats_a_micro_batch() -> None:
    dialogue = checked(1, 2, 3, 4)
    reports(dialogue, 1, 0)
    assert reports(dialogue, 2, 0) == [], "the other row is busy"
    reports(dialogue, 3, 1)
    assert reports(dialogue, 4, 1) == [
        "3 <- verify 0 of 1.0", "4 <- verify 0 of 1.0", "1 <- verify 1 of 1.0", "2 <- verify 1 of 1.0",
    ]  # fmt: skip
    assert reports(dialogue, 4, 0) == []
    assert reports(dialogue, 3, 0) == ["check passed"]
    reports(dialogue, 1, 1)
    assert reports(dialogue, 2, 1) == ["check passed"]
    assert dict(dialogue.job().trusted_steps) == {"w1": 0, "w2": 0, "w3": 0, "w4": 0}


def test_the_worker_of_the_first_wrong_pass_is_excluded_and_a_spare_takes_its_stage() -> None:
    dialogue = checked(1, 2, 3, 4, 5, 6, 7, micro_batches=3)
    run = dialogue.run
    assert run is not None and run.lease_book.step_sum is not None
    step_sum = run.lease_book.step_sum

    def compute(session: int, micro_batch: int) -> list[str]:
        """Compute a row's lease. Worker 4 is wrong backwards, which spoils the gradient of worker 3 as well."""
        workers = row_of(dialogue, session)
        wrong_from = 2 if 4 in workers else 4
        return [
            line for each in workers for line in reports(dialogue, each, micro_batch, wrong_from=wrong_from)
        ]

    for assignment in step_sum.assignments:
        assert assignment.session is not None
        lines = compute(assignment.session, assignment.node.first)
    while run.lease_book.step_sum is step_sum:
        check = step_sum.checks.leased()[0]
        lines += compute(check.session, check.micro_batch)
    assert "check faulty" in lines
    (excluded,) = dialogue.job().excluded
    assert excluded.worker == "w4"
    assert has_facts(excluded.reason, "faulty: step 1, micro-batch ... pass 3 of 4: ... w4 0x")
    assert dialogue.told[7] == dialogue.told[4], "the spare has the faulty worker's stage"
    states = {each.name: each.state for each in dialogue.status().workers}
    assert states["w4"] == "refused" and states["w3"] != "refused"


def test_one_row_alone_repeats_its_own_micro_batches() -> None:
    dialogue = checked(1, 2, micro_batches=1)
    reports(dialogue, 1, 0)
    assert reports(dialogue, 2, 0) == ["1 <- verify 0 of 1.0", "2 <- verify 0 of 1.0"]
    reports(dialogue, 1, 0, wrong_from=3)
    assert "check faulty" in reports(dialogue, 2, 0, wrong_from=3)
    assert [each.worker for each in dialogue.job().excluded] == ["w1"], (
        "its backward pass differs, its inputs do not"
    )


def test_a_row_that_fails_to_check_is_asked_no_more_and_counts_against_no_worker() -> None:
    dialogue = checked(1, 2, 3, 4, 5)
    for session, micro_batch in ((1, 0), (2, 0), (3, 1), (4, 1)):
        reports(dialogue, session, micro_batch)
    orders = dialogue.says(3, pb.Failure(job="a", lease=dialogue.leases[3], reason="no memory"))
    assert orders[0] == "4 <- revoke"
    assert has_facts(
        dialogue.notes[-1], "the row of w3, w4 could not check micro-batch 0 of step 1: no memory"
    )
