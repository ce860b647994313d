"""Downloads give a complete and verified checkpoint, or none; a repeated one goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.main import main
from protos import jobs_pb2
from services.checkpoints.read import (
    read_checkpoint,
)
from services.checkpoints.write import (
    write_checkpoint,
)
from services.tensors.layout import Layout
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.fake_aggregator import FakeAggregator

SHORT = replace(STANDARD_TIMEOUTS, follow=0.05)


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


def run(aggregator: FakeAggregator, target: Path) -> int:
    return main(["download", "job-1", str(target), "--aggregator", aggregator.address])


def damage(aggregator: FakeAggregator) -> None:
    content = aggregator.files["model.safetensors"]
    aggregator.served["model.safetensors"] = content[:-1] + bytes([content[-1] ^ 1])


def escape(aggregator: FakeAggregator) -> None:
    aggregator.files["../escaped"] = b"x"


def lengthen(aggregator: FakeAggregator) -> None:
    aggregator.sent_sizes["model.safetensors"] = 10**6


def leave_out(aggregator: FakeAggregator) -> None:
    del aggregator.files["model.safetensors"]


def add(aggregator: FakeAggregator) -> None:
    aggregator.files["more.json"] = b"{}"


def send_another_step(aggregator: FakeAggregator) -> None:
    aggregator.step = 400


def send_nothing(aggregator: FakeAggregator) -> None:
    aggregator.files = {}


@pytest.mark.parametrize(
    ("fault", "expected", "code", "stays"),
    [
        (damage, "step 500: model.safetensors is damaged", 2, False),
        (escape, "'../escaped'", 1, False),
        (lengthen, "of 1000000 bytes arrived", 1, True),
        (leave_out, "sent 2 files of the checkpoint of job job-1, step 500; expected the 3 of job", 1, False),
        (add, "sent 4 files", 1, False),
        (send_nothing, "sent 0 names of files", 1, False),
        (send_another_step, "step 500; expected the 3 of job job-1, step 400", 1, False),
    ],
    ids=["damage", "escape", "lengthen", "leave_out", "add", "send_nothing", "another_step"],
)
def test_an_incomplete_download_never_looks_complete(
    fault: Callable[[FakeAggregator], None],
    expected: str,
    code: int,
    stays: bool,
    checkpoint: Path,
    aggregator: FakeAggregator,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.jobs.client._RETRY_SECONDS", 0.01)
    fault(aggregator)
    target = tmp_path / "target"
    assert run(aggregator, target) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
    left = [path.name for path in target.iterdir()] if target.exists() else []
    assert all(name.startswith(".step-") and name.endswith(".partial") for name in left)
    assert len(left) == stays
    assert not (tmp_path / "escaped").exists()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stops=st.lists(st.integers(0, 12), max_size=3))
def test_a_repeated_command_goes_on_where_it_stopped(
    checkpoint: Path,
    aggregator: FakeAggregator,
    tmp_path_factory: pytest.TempPathFactory,
    stops: list[int],
) -> None:
    target = tmp_path_factory.mktemp("target")
    aggregator.read.clear()
    for pieces in stops:
        aggregator.silent_after = len(aggregator.read) + pieces
        with (
            patch("services.jobs.client._RETRY_SECONDS", 0.0),
            patch("services.jobs.client.STANDARD_TIMEOUTS", SHORT),
        ):
            if run(aggregator, target) == 0:
                break
        assert not (target / "step-00000500").exists(), "it appears complete or not at all"
    aggregator.silent_after = None
    if not (target / "step-00000500").exists():
        assert run(aggregator, target) == 0
    np.testing.assert_array_equal(read_checkpoint(target / "step-00000500").weights, np.arange(2000))
    assert [path.name for path in target.iterdir()] == ["step-00000500"]
    assert len({path.name for path in (target / "step-00000500").iterdir()}) == 4
    assert len(aggregator.read) == len(set(aggregator.read)), "nothing is sent twice"


def test_a_checkpoint_that_was_removed_leaves_nothing(
    checkpoint: Path, aggregator: FakeAggregator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aggregator.is_removed = True
    assert run(aggregator, tmp_path / "target") == 2
    assert "the checkpoint was removed" in capsys.readouterr().err
    assert [*(tmp_path / "target").iterdir()] == []
