"""A count of tokens is refused if so many micro-batches can't have it."""

from __future__ import annotations

from services.protocol.bounds import MAX_MICRO_BATCHES
from services.protocol.findings import MAX_COUNT, check_count
from tests.support.facts import has_facts


def test_a_count_is_at_least_1_and_at_most_all_tokens() -> None:
    assert check_count(1, 4, 10) is None and check_count(40, 4, 10) is None
    for count in (0, 41, 2**64 - 1):
        assert has_facts(str(check_count(count, 4, 10)), f"findings.count is {count}, expected 1 to 40")


def test_without_a_known_number_of_tokens_sums_of_counts_fit_a_message() -> None:
    assert check_count(MAX_COUNT * 4, 4) is None
    assert check_count(MAX_COUNT * 4 + 1, 4) is not None
    assert check_count(2**63, 4, 2**63) is not None, "a worker may say so of its micro-batches"
    assert MAX_COUNT * MAX_MICRO_BATCHES < 2**64
