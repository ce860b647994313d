"""Downloads give a complete and verified checkpoint, or nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli.main import main
from protos import jobs_pb2
from services.checkpoints.read import (
    read_checkpoint,
)
from services.checkpoints.write import (
    write_checkpoint,
)
from services.tensors.layout import Layout
from tests.support.fake_aggregator import FakeAggregator


@pytest.fixture
def checkpoint(aggregator: FakeAggregator, tmp_path: Path) -> Path:
    """Checkpoint of step 500 that the aggregator serves."""
    layout = Layout.build([("weight", (40, 50), True, "weight", False)])
    info = write_checkpoint(
        tmp_path / "source",
        job="job-1",
        generation=1,
        step=500,
        config_json="{}",
        layout=layout,
        weights=np.arange(2000, dtype=np.float32),
        optimizer_state={},
        files={"config.json": b"{}"},
    )
    aggregator.jobs["job-1"] = jobs_pb2.Job(id="job-1", state=jobs_pb2.RUNNING)
    aggregator.files = {path.name: path.read_bytes() for path in sorted(info.path.iterdir())}
    return info.path


def test_a_download_is_the_checkpoint(
    checkpoint: Path, aggregator: FakeAggregator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "target"
    assert main(["download", "job-1", str(target), "--aggregator", aggregator.address, "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["job"], result["step"]) == ("job-1", 500)
    assert result["path"] == str(target / "step-00000500")
    np.testing.assert_array_equal(read_checkpoint(target / "step-00000500").weights, np.arange(2000))
    assert [path.name for path in target.iterdir()] == ["step-00000500"]
    assert main(["download", "job-1", str(target), "--aggregator", aggregator.address]) == 2
    assert "exists already" in capsys.readouterr().err


def damage(aggregator: FakeAggregator) -> None:
    content = bytearray(aggregator.files["model.safetensors"])
    content[-1] ^= 1
    aggregator.files["model.safetensors"] = bytes(content)


def escape(aggregator: FakeAggregator) -> None:
    aggregator.files["../escaped"] = b"x"


def shorten(aggregator: FakeAggregator) -> None:
    aggregator.sent_sizes["model.safetensors"] = 10**6


def leave_out(aggregator: FakeAggregator) -> None:
    del aggregator.files["model.safetensors"]


def send_another_step(aggregator: FakeAggregator) -> None:
    aggregator.step = 400


def send_of_two_steps(aggregator: FakeAggregator) -> None:
    aggregator.sent_steps["model.safetensors"] = 400


def send_nothing(aggregator: FakeAggregator) -> None:
    aggregator.files = {}


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (damage, "not a complete checkpoint"),
        (escape, "'../escaped'"),
        (shorten, "of 1000000 bytes arrived"),
        (leave_out, "not a complete checkpoint"),
        (send_nothing, "sent no files"),
        (send_another_step, "sent the checkpoint of job job-1, step 500; expected job job-1, step 400"),
        (send_of_two_steps, "'model.safetensors' belongs to step 400, expected step 500"),
    ],
    ids=["damage", "escape", "shorten", "leave_out", "send_nothing", "another_step", "two_steps"],
)
def test_an_incomplete_download_leaves_nothing_behind(
    fault: object,
    expected: str,
    checkpoint: Path,
    aggregator: FakeAggregator,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert callable(fault)
    fault(aggregator)
    target = tmp_path / "target"
    assert main(["download", "job-1", str(target), "--aggregator", aggregator.address]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
    assert list(target.iterdir()) == []
    assert not (tmp_path / "escaped").exists()
