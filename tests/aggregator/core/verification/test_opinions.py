"""Tests of the sample of checked micro-batches, of verdicts on checksums, and of which worker to ask next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.verification.opinions import (
    Check,
    Opinion,
    agree,
    choose_next,
    find_faulty,
    sample_micro_batches,
)

WORKERS = st.sampled_from("abcde")
TRUTH = 7
OPINIONS = st.lists(
    st.builds(Opinion, WORKERS, st.integers(1, 99), st.integers(TRUTH, TRUTH + 2)), min_size=1
)


# ---- the sample ----


@given(st.text(max_size=20), st.integers(0, 10**9), st.integers(1, 64), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_fraction_checks_the_same_and_more(
    job: str, step: int, micro_batches: int, one: float, other: float
) -> None:
    fewer, more = (sample_micro_batches(job, step, micro_batches, each) for each in sorted((one, other)))
    assert set(fewer) <= set(more) <= set(range(micro_batches))
    assert sample_micro_batches(job, step, micro_batches, 0.0) == ()
    assert sample_micro_batches(job, step, micro_batches, 1.0) == tuple(range(micro_batches))
    sample = sample_micro_batches(job, step, micro_batches, other)
    larger_step = sample_micro_batches(job, step, 2 * micro_batches, other)
    assert larger_step[: len(sample)] == sample, "a step of another size checks the same micro-batches"


def test_the_sample_has_the_wanted_size_and_depends_on_job_and_step() -> None:
    counts = [len(sample_micro_batches("job", step, 8, 0.1)) for step in range(1000)]
    assert 600 < sum(counts) < 1000
    assert len(set(counts)) > 2
    assert [sample_micro_batches("job", step, 8, 0.5) for step in range(20)] != [
        sample_micro_batches("another", step, 8, 0.5) for step in range(20)
    ]


# ---- opinions ----


@given(OPINIONS)
def test_agreeing_or_all_steady_workers_are_never_found_faulty(
    opinions: list[Opinion],
) -> None:
    guilty = find_faulty(opinions)
    if agree(opinions):
        assert not guilty
    steady = {
        worker
        for worker in {each.worker for each in opinions}
        if len({each.crc32c for each in opinions if each.worker == worker}) == 1
    }
    assert guilty == set() or steady - guilty or not steady or guilty.isdisjoint(steady)


@given(st.sets(WORKERS, min_size=2), WORKERS, st.data())
def test_one_wrong_worker_among_three_is_found_faulty_alone(
    honest: set[str], liar: str, data: st.DataObject
) -> None:
    honest.discard(liar)
    if len(honest) < 2:
        return
    opinions = [Opinion(worker, 1, TRUTH) for worker in honest] + [Opinion(liar, 2, TRUTH + 1)]
    assert find_faulty(data.draw(st.permutations(opinions))) == {liar}


def test_a_worker_that_contradicts_itself_is_faulty() -> None:
    assert find_faulty([Opinion("a", 1, 7), Opinion("a", 2, 8)]) == {"a"}
    assert find_faulty([Opinion("a", 1, 7), Opinion("b", 2, 8), Opinion("a", 3, 7), Opinion("b", 4, 7)]) == {
        "b"
    }


def test_two_steady_workers_that_differ_are_not_judged() -> None:
    stubborn = [Opinion("a", 1, 7), Opinion("b", 2, 8), Opinion("a", 3, 7), Opinion("b", 4, 8)]
    assert find_faulty(stubborn) == set()
    assert find_faulty([*stubborn, Opinion("c", 5, 8)]) == {"a"}, "a third one decides"


# ---- whom to ask ----


@given(OPINIONS, st.sets(WORKERS))
def test_other_workers_are_asked_before_the_same_one_and_asking_ends(
    opinions: list[Opinion], able: set[str]
) -> None:
    known, asked = list(opinions), 0
    while wanted := choose_next(known, sorted(able)):
        given = {each.worker for each in known}
        assert not given >= set(able) or set(wanted) <= given
        assert given >= set(able) or not given & set(wanted)
        known.append(Opinion(wanted[0], 100 + asked, TRUTH))
        asked += 1
    assert asked <= 2 * len(able)


def test_a_repeated_message_is_no_second_opinion() -> None:
    check = Check(3)
    for lease in (1, 1, 2):
        check.add(Opinion("a", lease, 7))
    assert [each.lease for each in check.opinions] == [1, 2]
    assert check.describe_opinions() == "a 0x00000007, a 0x00000007"
