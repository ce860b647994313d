"""`tiermesh metrics`: what the table shows, CSV that other programs read, and what an odd aggregator may answer."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator

import pytest

from cli.main import main
from cli.metrics import History, format_history
from protos import jobs_pb2
from tests.support.fake_aggregator import FakeAggregator, metrics_rows, serving

FULL = {
    "step": [1.0, 2.0],
    "unix_seconds": [1e9, 1e9 + 0.5],
    "generation": [1.0, 1.0],
    "loss": [0.1 + 0.2, math.nan],
    "step_seconds": [0.7031409740447998, 0.5],
    "compute_seconds": [0.35157048702239990, 0.5],
    "waited_for": ["w1, w2", ""],
}


@pytest.fixture
def fake() -> Iterator[FakeAggregator]:
    """Serve an aggregator that has a job with a history of two steps."""
    fake = FakeAggregator()
    fake.jobs["job-1"] = jobs_pb2.Job(id="job-1", state=jobs_pb2.SUCCEEDED)
    fake.metrics = [metrics_rows(1, **FULL)]
    with serving(fake):
        yield fake


def run(fake: FakeAggregator, *words: str) -> int:
    return main(["metrics", "job-1", "--aggregator", fake.address, *words])


def test_csv_has_a_row_for_each_step(fake: FakeAggregator, capsys: pytest.CaptureFixture[str]) -> None:
    fake.metrics.append(metrics_rows(1, **{name: values[:1] for name, values in FULL.items()}))
    assert run(fake, "--csv") == 0
    assert fake.metrics_requests == [jobs_pb2.MetricsRequest(job="job-1")]
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 3
    assert rows[0] == {
        "step": "1",
        "unix_seconds": "1000000000.000",
        "generation": "1",
        "loss": "0.30000000000000004",
        "step_seconds": "0.703141",
        "compute_seconds": "0.3515705",
        "waited_for": "w1, w2",
    }
    assert (rows[1]["loss"], rows[1]["waited_for"]) == ("", "")


def test_csv_of_summaries_has_a_column_for_each_kind(
    fake: FakeAggregator, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.metrics = [metrics_rows(64, step=[64.0], loss={"min": [1.0], "max": [3.0], "mean": [2.0]})]
    assert run(fake, "--csv", "--points", "5", "--columns", "loss", "--from", "1", "--to", "64") == 0
    request = jobs_pb2.MetricsRequest(job="job-1", columns=["loss"], first_step=1, last_step=64, points=5)
    assert fake.metrics_requests == [request]
    assert capsys.readouterr().out == "step,loss_min,loss_max,loss_mean\n64,1.0,3.0,2.0\n"


def test_json_has_null_for_what_is_unknown(fake: FakeAggregator, capsys: pytest.CaptureFixture[str]) -> None:
    fake.metrics = [metrics_rows(2, step=[2.0], loss={"min": [1.0], "max": [3.0], "mean": [math.nan]})]
    assert run(fake, "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
        "job": "job-1",
        "steps_per_row": 2,
        "columns": {"step": [2.0], "loss": {"min": [1.0], "max": [3.0], "mean": [None]}},
    }


def test_a_table_shows_shares_of_the_time_and_leaves_out_what_does_not_fit() -> None:
    columns = {
        ("step", "value"): [2000.0],
        ("loss", "mean"): [2.5],
        ("step_seconds", "mean"): [0.5],
        ("compute_seconds", "mean"): [0.375],
        ("wait_seconds", "mean"): [0.125],
        ("mfu", "mean"): [None],
        ("learning_rate", "mean"): [3e-4],
        ("waited_for", "text"): ["loudbox-2"],
    }
    wide = format_history(History(columns, 64), None)
    assert [line.split() for line in wide] == [
        ["STEP", "LOSS", "SECONDS", "COMPUTE", "WAIT", "LR", "WAITED", "FOR"],
        ["2,000", "2.5000", "0.5", "75%", "25%", "0.0003", "loudbox-2"],
        ["means", "of", "64", "steps", "up", "to", "each;", "--csv", "has", "all", "steps"],
    ]
    for width in (20, 30, 40, 50):
        lines = format_history(History(columns, 1), width)
        assert all(len(line) <= width for line in lines)
        assert lines[0].startswith("STEP")


def test_a_job_without_steps_says_so(fake: FakeAggregator, capsys: pytest.CaptureFixture[str]) -> None:
    fake.metrics = [metrics_rows(1, step=[], loss=[])]
    assert run(fake) == 0
    assert "no figures: the job has made no step" in capsys.readouterr().out
    assert run(fake, "--csv") == 0
    assert capsys.readouterr().out == "step,loss\n"


@pytest.mark.parametrize(
    "part",
    [
        metrics_rows(1, step=[1.0], loss=[]),
        metrics_rows(1, step=[1.0], waited_for=["a", "b"]),
    ],
)
@pytest.mark.parametrize("words", [(), ("--csv",), ("--json",)])
def test_columns_of_different_lengths_are_an_error_of_one_line(
    fake: FakeAggregator,
    capsys: pytest.CaptureFixture[str],
    part: jobs_pb2.MetricsRows,
    words: tuple[str, ...],
) -> None:
    fake.metrics = [part]
    assert run(fake, *words) == 1
    errors = capsys.readouterr().err
    assert "columns with different numbers of rows came" in errors and "Traceback" not in errors


def test_odd_columns_are_shown_without_a_traceback(
    fake: FakeAggregator, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = jobs_pb2.MetricsRows(steps_per_row=0)
    odd.columns.add(name="st\x1b[31mep", kind="odd", values=b"123456789")
    odd.columns.add(name="step", kind="mean", values=b"\xff" * 8)
    for metrics in ([], [jobs_pb2.MetricsRows()], [odd]):
        fake.metrics = metrics
        for words in ((), ("--csv",), ("--json",)):
            assert run(fake, *words) in (0, 1)
            printed = capsys.readouterr()
            assert "\x1b" not in printed.out + printed.err and "Traceback" not in printed.err
