"""What workers say of a job: whose word counts, when it binds, and what a person can decide. Tables of cases."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from aggregator.core.membership.claims import (
    MOST_CLAIMANTS,
    MOST_CLAIMS,
    Answer,
    Claims,
    bind_own,
    describe_differences,
    is_void,
    trust,
    void_of,
)
from protos.cluster_pb2 import Void
from protos.jobs_pb2 import Claim, Job, Start
from services.protocol.versions import Version
from tests.support.facts import has_facts

COMEBACK_SECONDS = 120.0
AGREES, DISSENTS, CONTENDS, OTHER_CODE = Answer.AGREES, Answer.DISSENTS, Answer.CONTENDS, Answer.OTHER_CODE


def says(blas: str = "x", layout: str = "l", elements: int = 9, code: str = "c", batches: int = 3) -> Claim:
    """Return a claim; with 0 batches, that of a worker that does not know how many there are."""
    return Claim(
        fingerprint={"blas": blas, "code": code},
        layout_hash=layout,
        elements=elements,
        evaluation_batches=batches,
    )


class Said(NamedTuple):
    """A worker's claim, and what it should mean: names in capitals are voices."""

    worker: str
    blas: str
    answer: Answer


def restarted(job: Job, *, exact: bool = True) -> Claims:
    """Return the claims of a job as a new aggregator has them."""
    return Claims(job, exact=exact, now=0.0, comeback_seconds=COMEBACK_SECONDS)


def make(claims: Claims, worker: str, claim: Claim, *, leased: bool = False) -> Answer:
    """Let a worker make a claim."""
    voice = worker if worker.isupper() else ""
    return claims.make(claim, worker, voice, leased=leased)[0]


def claimants(job: Job) -> list[str]:
    """Return who says what, the job's own claim first."""
    return [" ".join(each.worker for each in claim.claimants) for claim in job.claims]


@pytest.mark.parametrize(
    ("leased", "said", "own", "bound"),
    [
        (False, [Said("A", "x", AGREES)], "A", False),
        (False, [Said("A", "x", AGREES), Said("B", "x", AGREES)], "A B", True),
        (False, [Said("a", "x", AGREES), Said("b", "x", AGREES)], "a b", False),
        (False, [Said("a", "x", AGREES), Said("B", "x", AGREES)], "a B", False),
        (False, [Said("A", "x", AGREES), Said("A", "x", AGREES)], "A", False),
        (True, [Said("A", "x", AGREES), Said("B", "y", DISSENTS)], "A", False),
        (True, [Said("A", "x", AGREES), Said("B", "y", DISSENTS), Said("C", "y", DISSENTS)], "A", False),
        (False, [Said("A", "x", AGREES), Said("B", "y", CONTENDS)], "A", False),
        (False, [Said("a", "x", AGREES), Said("b", "y", DISSENTS)], "a", False),
        (False, [Said("a", "x", AGREES), Said("B", "y", DISSENTS)], "a", False),
        (False, [Said("A", "x", AGREES), Said("b", "y", DISSENTS)], "A", False),
        (False, [Said("A", "x", AGREES), Said("B", "y", CONTENDS), Said("C", "x", AGREES)], "A C", True),
        (False, [Said("A", "x", AGREES), Said("B", "y", CONTENDS), Said("C", "y", AGREES)], "B C", True),
        (False, [Said("A", "x", AGREES), Said("B", "x", AGREES), Said("C", "y", DISSENTS)], "A B", True),
        (False, [Said("A", "x", AGREES), Said("A", "y", AGREES)], "A", False),
    ],
)
def test_whose_claim_counts(leased: bool, said: list[Said], own: str, bound: bool) -> None:
    job = Job()
    claims = restarted(job)
    answers = [make(claims, each.worker, says(each.blas), leased=leased) for each in said]
    assert answers == [each.answer for each in said]
    assert (claimants(job)[0], job.claims[0].bound) == (own, bound)
    assert (claims.contended is not None) == (answers[-1] is CONTENDS)


def test_a_certificate_counts_once_whatever_names_it_is_bound_to() -> None:
    job = Job()
    claims = restarted(job)
    for worker in ("w1", "w2"):
        claims.make(says(), worker, "w1", leased=False)
    assert claimants(job) == ["w1 w2"] and not job.claims[0].bound


@pytest.mark.parametrize(
    ("other", "exact", "answer"),
    [
        (says(layout="m"), True, DISSENTS),
        (says(layout="m"), False, DISSENTS),
        (says(elements=8), True, DISSENTS),
        (says(elements=8), False, DISSENTS),
        (says(blas="y"), True, DISSENTS),
        (says(blas="y"), False, AGREES),
        (says(batches=4), True, DISSENTS),
        (says(batches=4), False, DISSENTS),
        (says(batches=0), True, AGREES),
        (says(code="d", batches=0), True, OTHER_CODE),
        (says(code="d", batches=4), True, DISSENTS),
        (says(code="d"), True, OTHER_CODE),
        (says(code="d"), False, AGREES),
        (says(code="d", blas="y"), True, DISSENTS),
        (says(code="d", layout="m"), True, DISSENTS),
    ],
)
def test_what_counts_as_another_claim(other: Claim, exact: bool, answer: Answer) -> None:
    claims = restarted(Job(), exact=exact)
    assert make(claims, "A", says()) is AGREES
    assert make(claims, "B", other, leased=True) is answer


@pytest.mark.parametrize(
    ("batches", "claimants_after", "bound"),
    [
        ([0, 0], "A B", False),
        ([0, 3], "B", False),
        ([3, 0], "A", False),
        ([0, 3, 0], "B", False),
        ([0, 3, 3], "B C", True),
        ([3, 0, 3], "A C", True),
    ],
)
def test_a_worker_that_does_not_know_the_number_of_batches_does_not_bind_it(
    batches: list[int], claimants_after: str, bound: bool
) -> None:
    job = Job()
    claims = restarted(job)
    for worker, number in zip("ABC", batches, strict=False):
        assert make(claims, worker, says(batches=number)) is AGREES
    assert (claimants(job), job.claims[0].bound) == ([claimants_after], bound)
    assert job.claims[0].evaluation_batches == max(batches)


def test_a_person_who_overrules_a_number_of_batches_excludes_only_who_has_said_it() -> None:
    job = Job()
    claims = restarted(job)
    make(claims, "LIAR", says(batches=7))
    make(claims, "MIDDLE", says(batches=0), leased=True)
    assert make(claims, "LAST", says(), leased=True) is DISSENTS
    assert trust(job, "LAST") is None
    assert [each.worker for each in job.excluded] == ["LIAR"]
    assert has_facts(job.excluded[0].reason, "it has 7 held-out batches, the job 3")


@pytest.mark.parametrize(
    ("bound", "present", "answer", "own"),
    [
        (False, {"A", "B"}, DISSENTS, "A"),
        (False, {"B"}, AGREES, "B"),
        (True, {"B"}, DISSENTS, "A"),
    ],
    ids=["it is there", "it has left", "a COMMIT was made"],
)
def test_a_claim_that_is_not_bound_ends_with_its_claimant(
    bound: bool, present: set[str], answer: Answer, own: str
) -> None:
    job = Job(generation=1, step=1, checkpoint="step-1", checkpoint_step=1)
    claims = restarted(job)
    make(claims, "A", says())
    if bound:
        assert bind_own(job) and not bind_own(job)
    claims.settle(present, 1.0)
    assert make(claims, "B", says("y"), leased=True) is answer
    assert claimants(job)[0] == own
    void = own == "B"
    assert (job.void_generation, job.checkpoint) == ((1, "") if void else (0, "step-1"))
    assert is_void(job, Version(1, 0)) == void and not is_void(job, Version(2, 0))


def test_a_claimant_that_comes_back_goes_on_with_its_weights() -> None:
    job = Job(generation=1)
    claims = restarted(job)
    make(claims, "A", says())
    claims.settle(set(), 1.0)
    assert claims.is_open
    assert make(claims, "A", says(), leased=True) is AGREES
    assert not job.void_generation and not claims.is_open


def test_the_last_of_several_claimants_keeps_a_claim() -> None:
    job = Job()
    claims = restarted(job)
    for worker in ("a", "b"):
        make(claims, worker, says())
    claims.settle({"b"}, 1.0)
    assert claimants(job) == ["b"]
    assert make(claims, "c", says("y"), leased=True) is DISSENTS


@pytest.mark.parametrize(
    ("seconds", "answer"), [(COMEBACK_SECONDS - 1, DISSENTS), (COMEBACK_SECONDS, AGREES)]
)
def test_after_a_restart_a_claimant_has_a_while_to_come_back(seconds: float, answer: Answer) -> None:
    job = Job()
    make(restarted(job), "A", says())
    claims = restarted(job)
    claims.settle({"B"}, seconds)
    assert make(claims, "B", says("y"), leased=True) is answer


def test_who_has_come_back_after_a_restart_and_leaves_has_left() -> None:
    job = Job()
    make(restarted(job), "A", says())
    claims = restarted(job)
    claims.enter("A")
    claims.settle({"B"}, 1.0)
    assert make(claims, "B", says("y"), leased=True) is AGREES


def test_a_contention_outlives_a_restart_and_ends_with_one_of_the_two() -> None:
    job = Job()
    claims = restarted(job)
    make(claims, "A", says())
    make(claims, "B", says("y"))
    claims = restarted(job)
    assert make(claims, "A", says()) is AGREES
    assert has_facts(
        claims.describe_contention(), "B disagrees with A: blas is 'y', the job's is 'x' ... trust"
    )
    assert make(claims, "B", says("y")) is CONTENDS
    claims.settle({"A"}, 1.0)
    assert claims.contended is None and claims.describe_contention() is None
    assert claimants(job) == ["A"]


@pytest.mark.parametrize(
    ("own", "is_there", "outdated"),
    [
        ("x", True, {"ready", "waiting"}),
        ("x", False, {"ready", "refused", "waiting"}),
        ("y", True, {"refused", "waiting"}),
    ],
    ids=["another claim counts", "it has ended", "its own claim counts"],
)
def test_who_is_asked_again(own: str, is_there: bool, outdated: set[str]) -> None:
    """A worker that says y was told that it agrees, was refused, or waits for a contention that is over."""
    claims = restarted(Job())
    make(claims, "A", says(own))
    claims.settle({"A"} if is_there else set(), 1.0)
    found = {
        told: claims.is_outdated(says("y"), ready=told == "ready", waits=told == "waiting")
        for told in ("ready", "refused", "waiting")
    }
    assert {told for told, is_outdated in found.items() if is_outdated} == outdated


def test_who_waits_for_other_code_or_for_a_person_is_not_asked_again_meanwhile() -> None:
    claims = restarted(Job())
    make(claims, "A", says())
    assert not claims.is_outdated(says(code="d"), ready=False, waits=True)
    make(claims, "B", says("y"))
    assert not claims.is_outdated(says("y"), ready=False, waits=True)


def test_the_number_of_claims_and_claimants_is_bounded() -> None:
    job = Job()
    claims = restarted(job)
    for number in range(2 * MOST_CLAIMANTS):
        make(claims, f"w{number}", says())
    for number in range(3 * MOST_CLAIMS):
        assert make(claims, f"v{number}", says(f"{number}"), leased=True) is DISSENTS
    assert len(job.claims) == MOST_CLAIMS and len(job.claims[0].claimants) == MOST_CLAIMANTS
    assert claimants(job)[-1] == f"v{3 * MOST_CLAIMS - 1}", (
        "the newest is there, so that a person can trust it"
    )


def test_claims_that_contend_are_not_pushed_out() -> None:
    job = Job()
    claims = restarted(job)
    make(claims, "A", says())
    for number in range(MOST_CLAIMS - 1):
        assert make(claims, f"V{number}", says(f"{number}")) is CONTENDS
    assert make(claims, "Z", says("z")) is DISSENTS
    assert len(job.claims) == MOST_CLAIMS and "Z" not in claimants(job)


def test_a_change_of_code_takes_the_claim_of_those_who_waited() -> None:
    job = Job()
    claims = restarted(job)
    make(claims, "A", says())
    bind_own(job)
    assert make(claims, "B", says(code="d")) is OTHER_CODE
    claims.change_code("d")
    assert claimants(job) == ["B"] and job.claims[0].bound
    assert make(claims, "A", says()) is OTHER_CODE


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        (says(), ""),
        (says("y"), "blas is 'y', the job's is 'x'"),
        (says(layout="m"), "the layout's hash is m, the job's is l"),
        (says(elements=8), "the layout has 8 elements, the job's 9"),
        (
            Claim(layout_hash="l", elements=9),
            "blas is 'absent', the job's is 'x'; code is 'absent', the job's is 'c'",
        ),
    ],
)
def test_differences_are_named_fact_by_fact(claim: Claim, text: str) -> None:
    assert describe_differences(claim, says()) == text


# ---- what a person decides ----


def contended() -> Job:
    """Return a job of which two voices say two things, before its first lease."""
    job = Job(id="a", generation=1)
    claims = restarted(job)
    make(claims, "A", says())
    make(claims, "B", says("y"))
    return job


def dissented(*own: str, bound: bool = True) -> Job:
    """Return a job at step 7 whose claim is that of some workers, and of which B says something else."""
    job = Job(id="a", generation=3, step=7, checkpoint="step-5", checkpoint_step=5)
    claims = restarted(job)
    for worker in own:
        make(claims, worker, says())
    if bound:
        bind_own(job)
    make(claims, "B", says("y"), leased=True)
    return job


@pytest.mark.parametrize("worker", ["A", "B"])
def test_a_person_decides_between_claims_that_contend_and_excludes_nobody(worker: str) -> None:
    job = contended()
    assert trust(job, worker) is None
    assert claimants(job)[0] == worker and job.claims[0].bound
    assert not any(each.contends for each in job.claims) and len(job.claims) == 2
    assert not job.excluded
    before = Job()
    before.CopyFrom(job)
    assert trust(job, worker) is None and job == before, "it is trusted already"


@pytest.mark.parametrize(
    ("own", "bound"), [(["A"], True), (["A"], False), (["a", "b", "A"], True), (["a", "b"], True)]
)
def test_a_person_overrules_a_claim_of_at_most_one_voice(own: list[str], bound: bool) -> None:
    job = dissented(*own, bound=bound)
    assert trust(job, "B") is None
    assert claimants(job) == ["B"] and job.claims[0].bound
    assert [each.worker for each in job.excluded] == own
    assert all((each.generation, each.step) == (3, 7) for each in job.excluded)
    assert has_facts(job.excluded[0].reason, "overruled ... B instead ... blas is 'x', the job's is 'y'")
    assert (job.step, job.checkpoint, job.checkpoint_step, job.void_generation) == (0, "", 0, 3)
    assert list(void_of(job)) == [Void(generation=3)] and not void_of(job)[0].HasField("step")


def test_two_voices_are_not_overruled() -> None:
    job = dissented("A", "C")
    assert has_facts(str(trust(job, "B")), "B: contradicts 2 workers (A, C) ... submit the job again")
    assert claimants(job) == ["A C", "B"] and not job.excluded


@pytest.mark.parametrize(("job", "known"), [(dissented("A"), "A, B"), (Job(id="a"), "none")])
def test_only_a_worker_that_says_something_is_trusted(job: Job, known: str) -> None:
    assert has_facts(str(trust(job, "w\n9")), f"says nothing of job a now; expected one that does: {known}")


def test_what_a_job_starts_from_stays() -> None:
    job = dissented("A")
    job.start.CopyFrom(Start(job="earlier", step=50, first_step=5))
    assert trust(job, "B") is None
    assert job.step == 5
    assert void_of(job) == [Void(generation=3, step=5)]
    assert is_void(job, Version(3, 6)) and not is_void(job, Version(3, 5))
    assert not is_void(Job(), Version(0, 5)), "nothing was declared void"
