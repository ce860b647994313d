"""What is surplus: limits hold, protection wins, and neither depends on the other."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.retention import (
    EndedJob,
    Limits,
    Needs,
    Protection,
    StoredCheckpoint,
    find_needs,
    select_surplus,
)

NOW = 1_000_000.0

jobs_newest_first = st.lists(st.tuples(st.floats(0, NOW), st.integers(0, 1000)), max_size=12).map(
    lambda found: [EndedJob(f"job-{place}", *each) for place, each in enumerate(found)]
)
limits_given = st.builds(
    Limits,
    st.none() | st.floats(0, NOW),
    st.none() | st.integers(0, 12),
    st.none() | st.integers(0, 6000),
)
checkpoints = st.lists(
    st.builds(
        StoredCheckpoint, st.integers(0, 9), st.just(5), st.sampled_from(["", "a", "b"]), st.booleans()
    ),
    max_size=6,
    unique_by=lambda each: each.step,
)
needs = st.lists(
    st.builds(
        Needs,
        st.just("reader"),
        st.frozensets(st.tuples(st.sampled_from(["j", "k"]), st.integers(0, 9)), max_size=3),
        st.sampled_from(["", "a"]),
    ),
    max_size=3,
)


@given(jobs_newest_first, limits_given)
def test_every_limit_holds_for_what_stays(jobs: list[EndedJob], limits: Limits) -> None:
    surplus = select_surplus(jobs, limits, NOW)
    stays = [each for each in jobs if each not in surplus]
    if limits.older_than_seconds is not None:
        assert all(NOW - each.ended_seconds <= limits.older_than_seconds for each in stays)
    if limits.keep is not None:
        assert len(stays) <= limits.keep
    if limits.max_bytes is not None:
        assert sum(each.size_bytes for each in stays) <= limits.max_bytes or stays == jobs[:1]


@given(jobs_newest_first, limits_given, st.floats(0, NOW))
def test_nothing_goes_without_a_limit_or_within_its_grace(
    jobs: list[EndedJob], limits: Limits, grace_seconds: float
) -> None:
    assert not select_surplus(jobs, Limits(), NOW)
    surplus = select_surplus(jobs, limits, NOW, grace_seconds)
    assert all(NOW - each.ended_seconds >= grace_seconds for each in surplus)
    assert set(surplus) <= set(select_surplus(jobs, limits, NOW))


def test_a_job_that_ended_before_the_clock_was_set_back_goes_by_number_and_size() -> None:
    jobs = [EndedJob("new", NOW - 50, 10), EndedJob("future", NOW + 1e8, 10), EndedJob("fresh", NOW - 1, 10)]
    assert [each.id for each in select_surplus(jobs, Limits(keep=1), NOW, grace_seconds=5)] == ["future"]
    assert select_surplus(jobs[1:2], Limits(older_than_seconds=60), NOW, grace_seconds=5) == []


@given(jobs_newest_first, limits_given, st.floats(0, 1), st.integers(0, 12), st.integers(0, 6000))
def test_a_stricter_limit_lets_go_no_less(
    jobs: list[EndedJob], limits: Limits, share: float, fewer: int, less: int
) -> None:
    stricter = []
    if limits.older_than_seconds is not None:
        stricter.append(replace(limits, older_than_seconds=limits.older_than_seconds * share))
    if limits.keep is not None:
        stricter.append(replace(limits, keep=max(0, limits.keep - fewer)))
    if limits.max_bytes is not None:
        stricter.append(replace(limits, max_bytes=max(0, limits.max_bytes - less)))
    surplus = set(select_surplus(jobs, limits, NOW))
    for each in stricter:
        assert surplus <= set(select_surplus(jobs, each, NOW))
    for each in (
        replace(limits, older_than_seconds=None),
        replace(limits, keep=None),
        replace(limits, max_bytes=None),
    ):
        assert set(select_surplus(jobs, each, NOW)) <= surplus


@given(jobs_newest_first, limits_given)
def test_another_ended_job_keeps_nothing_that_was_surplus(jobs: list[EndedJob], limits: Limits) -> None:
    newer = [EndedJob("newer", NOW, 10), *jobs]
    assert set(select_surplus(jobs, limits, NOW)) <= set(select_surplus(newer, limits, NOW))


@given(checkpoints, needs, st.none() | st.integers(0, 9))
def test_what_is_needed_or_in_use_never_goes(
    found: list[StoredCheckpoint], live: list[Needs], result: int | None
) -> None:
    protection = Protection(live)
    removable, why = protection.select_removable("j", found, result)
    assert not (removable and why)
    for each in removable:
        assert not each.in_use
        assert each.step not in (result, max(other.step for other in found))
        assert all(("j", each.step) not in need.checkpoints for need in live)
        assert all(need.model_sha256 != each.model_sha256 or not need.model_sha256 for need in live)
    kept = protection.why_job_kept("j", found)
    assert bool(kept) == any(protection.why_kept("j", each) for each in found)


@given(checkpoints, needs, needs)
def test_more_needs_let_go_no_more(
    found: list[StoredCheckpoint], live: list[Needs], more: list[Needs]
) -> None:
    removable, _ = Protection(live).select_removable("j", found, None)
    fewer, _ = Protection([*live, *more]).select_removable("j", found, None)
    with_result, _ = Protection(live).select_removable("j", found, 3)
    assert set(fewer) | set(with_result) <= set(removable)


def spec(**fields: object) -> str:
    return json.dumps({"pretrained": None, "data": {"files": [], "tokenizer_path": None}} | fields)


def test_paths_of_a_job_name_what_it_needs_wherever_they_begin() -> None:
    for root in ("/var/lib/tiermesh/checkpoints", "/mnt/elsewhere", ""):
        start = {"path": f"{root}/1122-1/step-00000500", "files": {"model.safetensors": "f" * 64}}
        assert find_needs("next", spec(pretrained=start)) == Needs(
            "next", frozenset({("1122-1", 500)}), "f" * 64
        )
        tokens = {"files": [], "tokenizer_path": f"{root}/1122-2/step-00000012/tokenizer.json"}
        assert find_needs("next", spec(data=tokens)).checkpoints == {("1122-2", 12)}


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["pretrained", "data", "path"]), inner)
        ),
    )
)
def test_any_spec_is_read(content: object) -> None:
    find_needs("next", json.dumps(content))


def test_the_job_that_a_job_starts_from_is_needed() -> None:
    start = {"job": "j-1", "step": 40, "optimizer": True}
    assert find_needs("j", spec(start_from=start)).checkpoints == {("j-1", 40)}


def test_each_file_of_a_corpus_is_looked_at() -> None:
    files = [{"path": "/corpus.txt"}, {"path": "/mnt/j-2/step-00000500/tokenizer.json"}]
    assert find_needs("j", spec(data={"files": files})).checkpoints == {("j-2", 500)}


def test_a_damaged_spec_needs_nothing() -> None:
    for text in ("", "{", "[" * 100_000, "null"):
        assert find_needs("next", text) == Needs("next")


def test_a_checkpoint_behind_a_link_is_known_by_its_model() -> None:
    start = {"path": "/models/best", "files": {"model.safetensors": "a" * 64}}
    protection = Protection([find_needs("next", spec(pretrained=start))])
    kept = protection.why_kept("j", StoredCheckpoint(5, 1, "a" * 64))
    assert kept == "job next starts from its checkpoint of step 5"
    assert not protection.why_kept("j", StoredCheckpoint(5, 1, ""))
