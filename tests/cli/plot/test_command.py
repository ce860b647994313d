"""`tiermesh plot`: from folders without a server, from an aggregator, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from aggregator.history.writer import MetricsHistory
from cli.main import main
from protos import jobs_pb2
from tests.support.fake_aggregator import FakeAggregator, metrics_rows


def write_history(folder: Path, job: str, losses: list[float]) -> None:
    history = MetricsHistory(folder / "metrics")
    for number, loss in enumerate(losses, 1):
        state = jobs_pb2.Job(id=job, state=jobs_pb2.RUNNING, step=number, generation=1, loss=loss)
        history.record(jobs_pb2.JobEvent(job=state, kind="step", seconds=1e9 + number))
    history.close()


def test_a_folder_needs_no_aggregator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_history(tmp_path, "1124-1", [3.0, float("nan"), 2.0])
    write_history(tmp_path, "1125-2", [4.0, float("inf"), 2.5, 1.5])
    path = tmp_path / "loss.svg"
    line = [
        "plot",
        str(tmp_path),
        "-o",
        str(path),
        "--columns",
        "loss",
        "--json",
        "--aggregator",
        "localhost:1",
    ]
    assert main(line) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == {
        "picture": str(path),
        "curves": [
            {"job": "1124-1", "column": "loss", "steps": 3, "gaps": 1},
            {"job": "1125-2", "column": "loss", "steps": 4, "gaps": 1},
        ],
    }
    said = {each.text for each in ElementTree.parse(path).iter() if each.text}
    assert {"2 jobs", "1124-1", "1125-2", "step", "loss"} <= said
    assert main([*line[:1], str(tmp_path / "metrics" / "1124-1"), *line[2:], "--from", "2"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["curves"][0]["steps"] == 2


def test_a_job_is_asked_for_and_named(
    aggregator: FakeAggregator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aggregator.jobs["job-1"] = jobs_pb2.Job(id="job-1", name="tiny", state=jobs_pb2.RUNNING)
    aggregator.metrics = [metrics_rows(1, step=[1.0, 2.0], loss=[3.0, 2.0])]
    write_history(tmp_path, "old", [5.0, 4.0])
    path = tmp_path / "a.svg"
    line = ["plot", "job-1", str(tmp_path), "-o", str(path), "--aggregator", aggregator.address]
    assert main([*line, "--columns", "loss", "--log", "--smooth", "2", "--title", "both"]) == 0
    assert aggregator.metrics_requests == [jobs_pb2.MetricsRequest(job="job-1", columns=["loss"])]
    said = {each.text for each in ElementTree.parse(path).iter() if each.text}
    assert {"both", "tiny job-1", "old", "loss, logarithmic", "each point: mean of the last 2 steps"} <= said
    assert f"picture of loss: {path}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["FOLDER", "-o", "a.png"], "--output a.png: expected a name that ends with .svg"),
        (["FOLDER", "-o", "missing/a.svg"], "missing/a.svg: can't be written"),
        (["FOLDER", "--columns", "los"], "--columns: 'los' given, expected some of loss"),
        (["FOLDER", "--columns", ","], "--columns: no names given"),
        (["FOLDER", "--columns", "mfu"], "no step in this range has a value"),
        (["FOLDER", "--from", "9"], "no step in this range has a value"),
        (["FOLDER", "--from", "3", "--to", "2"], "last_step: 2 given with first_step 3"),
        (["./nowhere"], "./nowhere: no such folder"),
        (["."], "has no metrics"),
    ],
)
def test_what_can_t_be_drawn_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_history(tmp_path / "state", "a", [1.0, 2.0])
    words = [str(tmp_path / "state") if each == "FOLDER" else each for each in words]
    assert main(["plot", *words, "--aggregator", "localhost:1"]) == 2
    assert expected in capsys.readouterr().err
    assert not [*tmp_path.glob("*.svg")]
