"""The small curve of a loss: on a terminal that can show it, and nowhere else."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest

from aggregator.history.writer import MetricsHistory
from cli import small_curve
from cli.main import main
from cli.metrics import History
from cli.output import Output
from protos import jobs_pb2
from tests.support.fake_aggregator import FakeAggregator, metrics_rows


class Terminal(io.StringIO):
    """Standard output that says it is a terminal."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:
        return self._encoding

    def isatty(self) -> bool:
        return True


def lines(losses: list[float | None], cells: int = 8) -> list[str]:
    steps = [float(number) for number in range(1, len(losses) + 1)]
    columns = {("step", "value"): [*steps], ("loss", "value"): [*losses]}
    return [*small_curve.draw_small(History(columns, 1), cells)]


def test_a_falling_loss_falls() -> None:
    found = lines([4.0, 3.0, 2.0, 1.0])
    assert found == [
        "         4 ⠑⢄",
        "           ⠀⠀⠑⢄",
        "           ⠀⠀⠀⠀⠑⢄",
        "         1 ⠀⠀⠀⠀⠀⠀⠑⢄",
        "      loss steps 1 to 4",
    ]


def test_what_is_not_finite_is_a_gap_and_counted() -> None:
    *rows, last = lines([2.0, 2.0, math.inf, None, 1.0, 1.0], cells=30)
    assert last.endswith("steps 1 to 6; 2 points without a finite loss")
    assert {"⠀"} == {row[11:][15] for row in rows if len(row) > 26}, "nothing in the middle"
    assert lines([None, math.nan, 1.0]) == [] and lines([]) == []


@pytest.mark.parametrize("losses", [[1.0, 1.0], [-1e308, 1e308], [1e-300, 2e-300], [1.0] * 5000])
def test_every_range_fits(losses: list[float | None]) -> None:
    found = lines(losses, cells=20)
    assert len(found) == 5 and max(map(len, found)) <= 11 + 20


@pytest.mark.parametrize(
    ("encoding", "term", "words", "draws"),
    [
        ("utf-8", "xterm", [], True),
        ("ascii", "xterm", [], False),
        ("latin-1", "xterm", [], False),
        ("utf-8", "dumb", [], False),
        ("utf-8", "linux", [], False),
        ("utf-8", "xterm", ["--json"], False),
        (None, "xterm", [], False),
    ],
)
def test_status_draws_on_terminals_alone(
    aggregator: FakeAggregator,
    monkeypatch: pytest.MonkeyPatch,
    encoding: str | None,
    term: str,
    words: list[str],
    draws: bool,
) -> None:
    aggregator.jobs["job-1"] = jobs_pb2.Job(id="job-1", state=jobs_pb2.RUNNING)
    aggregator.metrics = [metrics_rows(1, step=[1.0, 2.0, 3.0], loss=[3.0, 2.0, 1.0])]
    stream = io.StringIO() if encoding is None else Terminal(encoding)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout", stream)
    assert main(["status", "job-1", "--aggregator", aggregator.address, *words]) == 0
    shown = stream.getvalue()
    assert ("loss steps 1 to 3" in shown) is draws
    assert all(len(line) <= 60 for line in shown.splitlines() if "⠑" in line)
    assert len(aggregator.metrics_requests) == draws, "nothing is asked that isn't shown"


def test_local_draws_what_its_folder_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = MetricsHistory(tmp_path)
    for number in range(1, 6):
        job = jobs_pb2.Job(id="a", state=jobs_pb2.RUNNING, step=number, generation=1, loss=1.0 / number)
        history.record(jobs_pb2.JobEvent(job=job, kind="step", seconds=1.0))
    history.close()
    assert small_curve.draw_loss_of_folder(tmp_path / "a", Output()) == []
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", Terminal("utf-8"))
    assert small_curve.draw_loss_of_folder(tmp_path / "a", Output())[-1].endswith("loss steps 1 to 5")
    assert small_curve.draw_loss_of_folder(tmp_path / "none", Output()) == []
