"""Trackers keep each step once, over restarts and going back; wandb and TensorBoard are the real packages."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protos.jobs_pb2 import Job, JobEvent
from services.errors import Refused
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.metrics import WorkerMetrics
from services.tracking.catalogue import TRACKERS, check_trackers, open_tracker
from services.tracking.points import METRICS, Point, point_of_event
from services.tracking.tracker import Run, Tracker

Read = Callable[[Path], dict[int, float]]


def run_of(folder: Path) -> Run:
    return Run("job-1", "tiny", folder, {"steps": 10})


def loss_of(step: int) -> Point:
    return Point("step", step, 1e9 + step, {"tiermesh_loss": 1 / step, "tiermesh_step_seconds": 0.5})


def write(tracker: Tracker, *points: Point) -> None:
    """Write the points that the tracker lacks, as `Recorder` does."""
    tracker.write(tracker.written.select_new(points))


def read_csv(folder: Path) -> dict[int, float]:
    with (folder / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "step"]
    found = {int(row["step"]): float(row["tiermesh_loss"]) for row in rows}
    assert len(found) == len(rows), "a step is doubled"
    return found


def read_jsonl(folder: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["kind"] == "step"]
    found = {row["step"]: row["tiermesh_loss"] for row in rows}
    assert len(found) == len(rows), "a step is doubled"
    return found


def read_tensorboard(folder: Path) -> dict[int, float]:
    """Return the losses of all event files: records of length, checksum, event, checksum."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found: dict[int, float] = {}
    for path in (folder / "tensorboard").iterdir():
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            event = event_pb2.Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]
            for value in event.summary.value:
                if value.tag == "tiermesh_loss":
                    assert event.step not in found, "a step is doubled"
                    found[event.step] = value.simple_value
    return found


FORMATS: dict[str, Read] = {"csv": read_csv, "jsonl": read_jsonl, "tensorboard": read_tensorboard}


@pytest.fixture(params=FORMATS)
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "tensorboard":
        pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    return str(request.param)


def test_each_step_is_there_once_over_restarts_and_going_back(name: str, tmp_path: Path) -> None:
    for first, last in ((1, 5), (3, 7), (1, 9)):  # the second and third go back to earlier checkpoints
        tracker = open_tracker(name, run_of(tmp_path))
        write(tracker, *(loss_of(step) for step in range(first, last + 1)))
        write(tracker, *(loss_of(step) for step in range(first, last + 1)))
        tracker.close()
    assert FORMATS[name](tmp_path) == pytest.approx({step: 1 / step for step in range(1, 10)})


@pytest.mark.parametrize("name", ["csv", "jsonl"])
@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_line_that_a_kill_cut_off_is_written_again(name: str, cut: int, tmp_path: Path) -> None:
    tracker = open_tracker(name, run_of(tmp_path))
    write(tracker, loss_of(1), loss_of(2))
    tracker.close()
    path = tmp_path / f"metrics.{name}"
    path.write_bytes(path.read_bytes()[:-cut])
    tracker = open_tracker(name, run_of(tmp_path))
    write(tracker, loss_of(1), loss_of(2), loss_of(3))
    tracker.close()
    assert FORMATS[name](tmp_path) == {1: 1.0, 2: 0.5, 3: 1 / 3}


@pytest.mark.parametrize("name", ["csv", "jsonl"])
def test_a_full_disk_leaves_whole_lines(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = open_tracker(name, run_of(tmp_path))
    write(tracker, loss_of(1))

    def fill(file: int, data: bytes, offset: int) -> int:
        if offset % 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(file, data[:1], offset)

    with monkeypatch.context() as patch:
        original = os.pwrite
        patch.setattr(os, "pwrite", fill)
        with pytest.raises(OSError, match="No space"):
            write(tracker, loss_of(2))
    assert FORMATS[name](tmp_path) == {1: 1.0}
    write(tracker, loss_of(3))
    tracker.close()
    assert FORMATS[name](tmp_path) == {1: 1.0, 3: 1 / 3}


@pytest.mark.parametrize("name", ["csv", "jsonl"])
def test_an_evaluation_has_a_line_of_its_own(name: str, tmp_path: Path) -> None:
    evaluation = Point("evaluation", 2, 1.0, {"tiermesh_validation_loss": 1.5})
    for _ in range(2):
        tracker = open_tracker(name, run_of(tmp_path))
        write(tracker, loss_of(1), loss_of(2))
        write(tracker, evaluation)
        tracker.close()
    lines = (tmp_path / f"metrics.{name}").read_text().splitlines()
    assert len([line for line in lines if "evaluation" in line and "1.5" in line]) == 1


def test_what_json_lacks_is_null_and_csv_is_as_python_reads_it(tmp_path: Path) -> None:
    diverged = Point("step", 1, 1.0, {"tiermesh_loss": math.nan, "tiermesh_grad_norm": math.inf})
    for each in ("csv", "jsonl"):
        write(open_tracker(each, run_of(tmp_path)), diverged)
    (row,) = (json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "metrics.jsonl").open())
    assert row["tiermesh_loss"] is None and row["tiermesh_grad_norm"] is None
    assert math.isnan(read_csv(tmp_path)[1])


def test_figures_of_a_step_have_the_names_of_metrics_and_unknown_ones_are_left_out() -> None:
    job = Job(id="a", step=3, loss=2.0, tokens_per_second=10.0, parameters=7, flops_per_token=42, mfu=0.5)
    event = JobEvent(job=job, kind="step", seconds=5.0, grad_norm=1.0, learning_rate=0.0, step_seconds=0.25)
    point = point_of_event(event)
    assert point is not None and set(point.values) <= set(METRICS)
    assert point.values["tiermesh_mfu_ratio"] == 0.5
    assert point.values["tiermesh_learning_rate"] == 0.0, "a known 0"
    assert "tiermesh_samples_per_second" not in point.values
    job.ClearField("mfu")
    without = point_of_event(JobEvent(job=job, kind="step"))
    assert without is not None and "tiermesh_mfu_ratio" not in without.values
    assert point_of_event(JobEvent(job=job, kind="checkpoint")) is None


def test_all_figures_are_metrics() -> None:
    aggregator = AggregatorMetrics()
    roles = WorkerMetrics(), aggregator, aggregator.optimizer
    assert set(METRICS) <= {family.name for role in roles for family in role.registry.collect()}


def test_a_tracker_that_is_not_installed_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.tracking.catalogue.find_spec", lambda package: None)
    check_trackers(["csv", "jsonl"], "here")
    for each, package in (("wandb", "wandb"), ("tensorboard", "tensorboardX"), ("mlflow", "mlflow")):
        with pytest.raises(
            Refused, match=rf"{package} is not installed at the aggregator; .*tiermesh-cluster\[{each}\]"
        ):
            check_trackers([each], "at the aggregator")


def test_mlflow_needs_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.tracking.catalogue.find_spec", lambda package: object())
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(Refused, match="MLFLOW_TRACKING_URI is not set here"):
        check_trackers(TRACKERS, "here")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    check_trackers(TRACKERS, "here")


def test_wandb_logs_offline_and_goes_on_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed; it is 20 MB, and no development dependency")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    logged: list[Any] = []
    for _ in range(2):
        tracker: Any = open_tracker("wandb", run_of(tmp_path))
        assert tracker._run.settings.mode == "offline"
        original = tracker._run.log
        tracker._run.log = lambda values, step, original=original: (
            logged.append(step),
            original(values, step=step),
        )
        write(tracker, loss_of(1), loss_of(2))
        write(tracker, Point("evaluation", 2, 1.0, {"tiermesh_validation_loss": 1.5}))
        tracker.close()
    assert logged == [1, 2, 2]
    assert len(list((tmp_path / "wandb").glob("offline-run-*-job-1/run-job-1.wandb"))) == 2


def test_mlflow_has_each_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed; it is no development dependency")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "server").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # in place of a server
    for last in (2, 3):
        tracker = open_tracker("mlflow", run_of(tmp_path))
        write(tracker, *(loss_of(step) for step in range(1, last + 1)))
        tracker.close()
    client = mlflow.MlflowClient()
    run_id = json.loads((tmp_path / "mlflow.mark").read_text())["run_id"]
    assert [each.step for each in client.get_metric_history(run_id, "tiermesh_loss")] == [1, 2, 3]
    assert client.get_run(run_id).info.status == "FINISHED"
