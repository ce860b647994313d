"""`tiermesh prune`: what it asks for, shows and refuses; ages and sizes as people write them."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.retention import Limits, Part
from cli.main import main
from cli.retention_options import read_age_seconds, read_count, read_retention, read_size_bytes
from protos import jobs_pb2
from services.errors import Refused
from tests.support.anything import is_one_line
from tests.support.fake_aggregator import FakeAggregator


def pruned(number: int, **fields: Any) -> jobs_pb2.PrunedJob:
    job = jobs_pb2.Job(id=f"job-{number}", state=jobs_pb2.SUCCEEDED, ended_seconds=1e9)
    return jobs_pb2.PrunedJob(job=job, **fields)


@pytest.fixture
def cluster(aggregator: FakeAggregator) -> FakeAggregator:
    aggregator.prunable = [
        pruned(1, bytes=10, checkpoints=2),
        pruned(2, kept="it is read"),
        pruned(3, bytes=5),
    ]
    aggregator.jobs = {each.job.id: each.job for each in aggregator.prunable}
    return aggregator


def run(
    cluster: FakeAggregator, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, dict[str, Any], str]:
    code = main(["prune", *words, "--json", "--aggregator", cluster.address])
    captured = capsys.readouterr()
    return code, json.loads(captured.out.splitlines()[-1]), captured.err


def test_a_dry_run_asks_for_the_limits_and_removes_nothing(
    cluster: FakeAggregator, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--older-than", "2d", "--keep", "7", "--max-bytes", "1.5KB", "--only", "logs", "--dry-run")
    code, result, shown = run(cluster, capsys, *words)
    assert code == 0
    (request,) = cluster.prunes
    assert request == jobs_pb2.PruneRequest(
        older_than_seconds=172_800.0, keep=7, max_bytes=1500, part=jobs_pb2.LOG, dry_run=True
    )
    assert [each["job"] for each in result["pruned"]] == ["job-1", "job-3"]
    assert result["kept"][0]["kept"] == "it is read" and result["bytes"] == 15
    assert "stays: it is read" in shown and "logs of 2 jobs, 15 bytes" in shown


def test_just_what_was_shown_is_removed(cluster: FakeAggregator, capsys: pytest.CaptureFixture[str]) -> None:
    code, result, _ = run(cluster, capsys, "--keep", "0", "--yes")
    assert code == 0
    look, act = cluster.prunes
    assert look.dry_run and not act.dry_run
    assert (list(act.jobs), act.part, act.HasField("keep")) == (["job-1", "job-3"], jobs_pb2.WHOLE_JOB, False)
    assert len(result["pruned"]) == 2


@pytest.mark.parametrize(("answer", "calls"), [("n\n", 1), ("y\n", 2)])
def test_a_terminal_is_asked(
    cluster: FakeAggregator,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    calls: int,
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda *_, **__: answer == "y\n")
    code, _, errors = run(cluster, capsys, "--keep", "0")
    assert (code, len(cluster.prunes)) == (0 if calls == 2 else 1, calls)
    assert ("nothing was removed" in errors) == (calls == 1)


def test_nobody_to_ask_is_refused(cluster: FakeAggregator, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = run(cluster, capsys, "--keep", "0")
    assert code == 2 and "give --yes, or look with --dry-run" in errors
    code, _, errors = run(cluster, capsys, "--dry-run")
    assert code == 2 and "name a JOB, or give --older-than" in errors
    assert not cluster.prunes


def test_a_named_job_that_stays_is_a_failure(
    cluster: FakeAggregator, capsys: pytest.CaptureFixture[str]
) -> None:
    code, result, errors = run(cluster, capsys, "job-2", "job-3", "--yes")
    assert code == 1 and "job job-2: not pruned: it is read" in errors
    assert [each["job"] for each in result["pruned"]] == ["job-3"]


def test_units() -> None:
    assert [read_age_seconds("x", text) for text in ("90s", "1.5m", "2h", "1d", "1 w")] == [
        90,
        90,
        7200,
        86_400,
        604_800,
    ]
    assert [read_size_bytes("x", text) for text in ("7B", "1KB", "1.5MB", "2GiB", "1 TB")] == [
        7,
        1000,
        1_500_000,
        2 << 30,
        10**12,
    ]


@pytest.mark.parametrize("text", ["30", "-1d", "1y", "d", "", "1e9d", "nan", "inf", "9" * 30 + "d", "1d\n2d"])
def test_an_age_without_its_unit_or_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="expected an age in s, m, h, d or w, for example 30d"):
        read_age_seconds("--older-than", text)


@given(st.text())
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    for read in (read_age_seconds, read_size_bytes, read_count):
        try:
            assert read("--option", text) >= 0
        except Refused as refused:
            assert is_one_line(refused)
    for prefix in ("", "logs.keep=", "jobs.older-than="):
        try:
            retain(prefix + text)
        except Refused as refused:
            assert is_one_line(refused)


def retain(*texts: str) -> dict[Part, Limits]:
    parameter = click.Option(["--retain"])
    return read_retention(click.Context(click.Command("aggregator")), parameter, texts)


def test_a_retention_has_limits_by_part() -> None:
    assert retain() == {}
    given = ("jobs.older-than=90d", "jobs.max-bytes=1TB", "logs.keep=100", "checkpoints.older-than=1w")
    assert retain(*given) == {
        Part.JOBS: Limits(90 * 86_400.0, None, 10**12),
        Part.LOGS: Limits(keep=100),
        Part.CHECKPOINTS: Limits(older_than_seconds=7 * 86_400.0),
    }


def test_an_endless_list_ends_the_command(
    cluster: FakeAggregator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.prune.MOST_JOBS", 1)
    status, _, error = run(cluster, capsys, "--keep", "7", "--dry-run")
    assert (status, "more than 1 jobs to prune" in error) == (1, True)
