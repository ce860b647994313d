"""`submit --follow` writes the trackers that a job leaves to its submitter."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.main import main
from protos import jobs_pb2
from tests.support.fake_aggregator import FakeAggregator

SUBMITTER = "tracking={trackers: [csv], written_by: submitter}"


def step(number: int, state: jobs_pb2.JobState = jobs_pb2.RUNNING) -> jobs_pb2.JobEvent:
    job = jobs_pb2.Job(id="job-1", name="tiny", steps=10, step=number, loss=1 / number, state=state)
    return jobs_pb2.JobEvent(job=job, seconds=1.0, kind="step", text=f"Step: {number}", step_seconds=0.5)


def test_a_follower_writes_them(aggregator: FakeAggregator, job_file: Path, tmp_path: Path) -> None:
    again = [step(1), step(2), step(3), step(4, jobs_pb2.SUCCEEDED)]
    aggregator.events = [[step(1), step(2), step(3), step(2), *again]]
    folder = tmp_path / "figures"
    arguments = [str(job_file), SUBMITTER, "--aggregator", aggregator.address, "--follow"]
    assert main(["submit", *arguments, "--tracking-dir", str(folder)]) == 0
    _, *rows = (folder / "job-1" / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows] == [["step", str(number)] for number in (1, 2, 3, 4)]


def test_without_following_they_are_refused(
    aggregator: FakeAggregator, job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", str(job_file), SUBMITTER, "--aggregator", aggregator.address]) == 2
    assert "give --follow, or written_by: aggregator" in capsys.readouterr().err
    assert not aggregator.submitted


def test_a_missing_package_is_refused_with_the_command(
    aggregator: FakeAggregator,
    job_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.tracking.catalogue.find_spec", lambda package: None)
    wandb = "tracking={trackers: [wandb], written_by: submitter}"
    assert main(["submit", str(job_file), wandb, "--aggregator", aggregator.address, "--follow"]) == 2
    assert (
        "wandb is not installed here; run there: pip install 'tiermesh-cluster[wandb]'"
        in capsys.readouterr().err
    )
    assert not aggregator.submitted


@pytest.mark.parametrize(
    ("tracking", "facts"),
    [
        ("tracking=[excel]", "csv, jsonl, tensorboard, wandb, mlflow"),
        ("tracking=5", "expected a list of csv"),
        ("tracking={trackers: [csv], path: /etc}", "path"),
        ("tracking={trackers: [csv], written_by: me}", "written_by"),
    ],
)
def test_other_trackers_and_paths_are_refused(
    tracking: str, facts: str, job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(job_file), tracking]) == 2
    found = capsys.readouterr().err
    assert facts in found and "training_config.tracking" in found
