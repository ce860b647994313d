"""Tests of the sample of checked micro-batches, and of verdicts on checksums."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.verification.opinions import Opinion, agree, find_faulty, sample_micro_batches

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
