"""Answers of rows are judged by the first pass that differs, and others are asked before the same ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.verification.answers import (
    Answer,
    choose_next,
    collect_answers,
    describe_answers,
    find_difference,
    find_faulty_workers,
)
from aggregator.core.verification.check import Check
from aggregator.core.verification.opinions import Opinion
from protos.cluster_pb2 import Checksum
from tests.support.facts import has_facts

PASSES = 6
"""Three stages: forward passes of workers 0, 1, 2 of a row, then backward ones of 2, 1, 0."""


def workers_of(row: str) -> tuple[str, ...]:
    return tuple(f"{row}{stage}" for stage in range(PASSES // 2))


def answer(row: str, lease: int, faulty: int = PASSES) -> Answer:
    """Return a row's answer, wrong from the pass at place `faulty` on."""
    workers = workers_of(row)
    sums = [(7 if place < faulty else hash((row, place)) % 1000 + 100) for place in range(PASSES)]
    return Answer(
        workers,
        tuple(
            Opinion(workers[min(place, PASSES - 1 - place)], lease, sums[place]) for place in range(PASSES)
        ),
    )


def single(worker: str, lease: int, crc32c: int) -> Answer:
    return Answer((worker,), (Opinion(worker, lease, crc32c),))


@given(st.permutations("abc"), st.integers(0, PASSES - 1))
def test_the_worker_of_the_first_wrong_pass_is_faulty_though_all_later_ones_differ(
    rows: list[str], place: int
) -> None:
    liar = rows[1]
    answers = [answer(row, at, place if row == liar else PASSES) for at, row in enumerate(rows)]
    assert find_difference(answers) == place
    assert find_faulty_workers(answers) == {f"{liar}{min(place, PASSES - 1 - place)}"}
    assert has_facts(describe_answers(answers), f"checksums of pass {place + 1} of {PASSES}")


@given(st.integers(0, PASSES - 1))
def test_a_row_that_contradicts_itself_has_a_faulty_worker(place: int) -> None:
    answers = [answer("a", 1, place), answer("b", 2)]
    assert find_difference(answers) == place and find_faulty_workers(answers) == set(), "one against one"
    assert find_faulty_workers([*answers, answer("a", 3)]) == {f"a{min(place, PASSES - 1 - place)}"}


def test_rows_that_agree_have_no_faulty_worker() -> None:
    answers = [answer("a", 1), answer("b", 2)]
    assert find_difference(answers) is None and find_faulty_workers(answers) == set()
    assert has_facts(describe_answers(answers), "pass 6 of 6: a0 0x00000007, b0 0x00000007")
    assert find_faulty_workers([]) == set()
    assert describe_answers([]) == "checksums of its gradient: none"


def test_checksums_of_a_rows_workers_are_put_in_the_order_of_the_passes() -> None:
    reports = [
        ("b", [Checksum(micro_batch=1, place=1, crc32c=11), Checksum(micro_batch=1, place=2, crc32c=12)]),
        ("a", [Checksum(micro_batch=1, place=3, crc32c=13), Checksum(micro_batch=1, place=0, crc32c=10)]),
        ("c", [Checksum(micro_batch=1, place=0, crc32c=99), Checksum(micro_batch=4, crc32c=14)]),
    ]
    found = collect_answers(("a", "b", "c"), 8, reports)
    assert [(each.worker, each.crc32c) for each in found[1].opinions] == [
        ("a", 10), ("b", 11), ("b", 12), ("a", 13),
    ]  # fmt: skip
    assert found[1].lease == found[4].lease == 8 and list(found) == [1, 4]


# ---- whom to ask ----

NAMES = st.sampled_from("abcde")


@given(st.lists(NAMES, min_size=1), st.sets(NAMES))
def test_others_are_asked_before_the_same_one_and_asking_ends(
    asked_before: list[str], able: set[str]
) -> None:
    known, asked = [single(each, at, 7) for at, each in enumerate(asked_before)], 0
    able_workers = [(each,) for each in sorted(able)]
    while wanted := choose_next(known, able_workers):
        given_by = {each.workers for each in known}
        assert not given_by >= set(able_workers) or set(wanted) <= given_by
        assert given_by >= set(able_workers) or not given_by & set(wanted)
        known.append(single(wanted[0][0], 100 + asked, 7))
        asked += 1
    assert asked <= 2 * len(able)


def test_a_repeated_message_is_no_second_answer() -> None:
    check = Check(3)
    assert all(check.add(single("a", lease, 7)) for lease in (1, 1, 2))
    assert [each.lease for each in check.answers] == [1, 2]
    assert describe_answers(check.answers) == "checksums of its gradient: a 0x00000007, a 0x00000007"


def test_an_answer_with_other_passes_is_not_compared() -> None:
    check = Check(3)
    assert check.add(answer("a", 1))
    assert not check.add(single("b", 2, 7))
    assert len(check.answers) == 1
