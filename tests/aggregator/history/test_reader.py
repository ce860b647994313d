"""Answers about the history: any range at any resolution, by one bounded read, and refusals that say what to do."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.history.columns import COLUMNS, Records, unknown_step
from aggregator.history.files import LEVELS, RecordFile
from aggregator.history.reader import MOST_POINTS, check_request, read_history
from aggregator.history.writer import MetricsHistory
from protos.jobs_pb2 import MetricsRequest
from services.errors import Refused
from services.protocol.bounds import MAX_ROWS, MESSAGE_LIMIT_BYTES
from tests.aggregator.history.rows import evaluation, losses, read, step, write

STEPS = 20_000


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of histories: the job's has 20,000 steps, whose losses are a random walk."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "a").mkdir()
    file = RecordFile(folder / "a", 1, writable=True)
    file.begin(1)
    records = np.repeat(unknown_step(), STEPS - 1)
    records["loss"] = walk()[:-1]
    records["unix_seconds"] = np.arange(1, STEPS)
    records["waited_for"] = np.where(np.arange(1, STEPS) % 3, 2, 1)
    records["generation"] = 1
    file.write(0, records)
    file.close()
    (folder / "a" / "names").write_text("one\ntwo\n")
    write(folder, [step(STEPS, loss=float(walk()[-1]), waited_for="two"), evaluation(STEPS, 0.5)])
    return folder


def walk() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the losses."""
    return np.cumsum(np.random.default_rng(0).normal(size=STEPS))


def test_every_step_is_sent_in_parts_of_bounded_size(long: Path) -> None:
    parts = list(read_history(long / "a", MetricsRequest(job="a")))
    assert len(parts) == -(-STEPS // MAX_ROWS)
    assert all(part.ByteSize() < MESSAGE_LIMIT_BYTES and part.steps_per_row == 1 for part in parts)
    assert {tuple(column.name for column in part.columns) for part in parts} == {COLUMNS}
    assert losses(long) == dict(enumerate(walk().tolist(), 1))


@pytest.mark.parametrize(
    ("first", "last", "found"),
    [
        (0, 0, (1, STEPS)),
        (5, 5, (5, 5)),
        (4000, 9000, (4000, 9000)),
        (STEPS, 0, (STEPS, STEPS)),
        (0, 10**18, (1, STEPS)),
    ],
)
def test_a_range_of_steps(long: Path, first: int, last: int, found: tuple[int, int]) -> None:
    steps = read(long, columns=["step"], first_step=first, last_step=last)["step"]
    assert steps == list(range(found[0], found[1] + 1))


def test_a_range_without_steps_has_the_columns(long: Path) -> None:
    for request in ({"first_step": STEPS + 1}, {"first_step": 2**63, "points": 9}):
        assert read(long, columns=["loss"], **request) == {"step": [], "loss": []}
    assert set(read(long.parent / "nothing")) == set(COLUMNS)


@settings(max_examples=30, deadline=None)
@given(
    first=st.integers(1, STEPS),
    length=st.one_of(st.integers(1, 200), st.integers(1, STEPS)),
    points=st.integers(1, 500),
)
def test_summaries_are_those_of_their_steps(long: Path, first: int, length: int, points: int) -> None:
    last = min(STEPS, first + length - 1)
    request = MetricsRequest(first_step=first, last_step=last, points=points)
    width = next(read_history(long / "a", request)).steps_per_row
    rows = read(long, first_step=first, last_step=last, points=points)
    ends = [int(each) for each in rows["step"]]
    assert len(ends) <= points
    if width == 1:
        assert rows["loss"] == walk()[first - 1 : last].tolist()
        return
    level = max(each for each in LEVELS if each <= width)
    begin = (first - 1) // level * level  # a range is widened to whole blocks
    assert ends[-1] == min(STEPS, -(-last // level) * level)
    for end, low, high, mean in zip(ends, rows["loss/min"], rows["loss/max"], rows["loss/mean"], strict=True):
        values = walk()[begin:end]
        assert len(values) == width or end == ends[-1]
        assert (low, high) == (values.min(), values.max())
        assert mean == pytest.approx(values.mean())
        begin = end


def test_a_summary_names_the_worker_that_most_steps_waited_for(long: Path) -> None:
    rows = read(long, points=3, columns=["waited_for", "generation", "validation_loss"])
    assert rows["waited_for"] == ["two", "two", "two"]
    assert rows["generation"] == [1, 1, 1]
    assert rows["validation_loss/mean"] == [None, None, 0.5]


def test_a_summary_reads_at_most_64_records_for_each_of_its_rows(
    long: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for points in (1, 2, 10, 100, 300):
        sizes: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(RecordFile, "read", _noting(RecordFile.read, sizes))
            read(long, points=points)
        assert sum(sizes) <= 64 * points + LEVELS[-1]
        assert max(sizes) <= MAX_ROWS


def _noting(read_records: Callable[..., Records], sizes: list[int]) -> Callable[..., Records]:
    """Return a function that reads records and notes how many."""

    def read_noted(file: RecordFile, start: int, stop: int) -> Records:
        sizes.append(stop - start)
        return read_records(file, start, stop)

    return read_noted


def test_infinite_and_missing_values_stay_apart(tmp_path: Path) -> None:
    write(tmp_path, [step(each, loss=loss) for each, loss in enumerate((1.0, float("inf"), float("nan")), 1)])
    rows = read(tmp_path, points=1)
    assert (rows["loss/min"], rows["loss/max"], rows["loss/mean"]) == ([1.0], [float("inf")], [float("inf")])


def test_columns_come_in_the_order_of_the_table_with_the_step_first(long: Path) -> None:
    assert list(read(long, columns=["mfu", "loss"], last_step=1)) == ["step", "loss", "mfu"]


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"columns": ["lost"]}, "columns: 'lost' is none of step, unix_seconds, "),
        ({"columns": ["lost"]}, "; did you mean loss?"),
        ({"columns": ["x\n" * 900]}, "; leave columns out for all"),
        ({"points": MOST_POINTS + 1}, "points: 10001 given, expected at most 10000; give fewer, or 0 "),
        (
            {"first_step": 9, "last_step": 8},
            "last_step: 8 given with first_step 9, expected one that is not ",
        ),
    ],
)
def test_what_is_refused_is_explained(request_: dict[str, Any], text: str) -> None:
    with pytest.raises(Refused) as caught:
        check_request(MetricsRequest(**request_))
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_a_history_can_be_read_and_copied_while_it_is_written(tmp_path: Path) -> None:
    """Check that reader and backup see rows that were whole at some time, and never another step's."""
    history, ended = MetricsHistory(tmp_path), threading.Event()

    def write_all() -> None:
        for number in range(1, 1500):
            history.record(step(number))
        for number in range(700, 1500):
            history.record(step(number, generation=2))
        history.close()
        ended.set()

    thread = threading.Thread(target=write_all)
    thread.start()
    reads = 0
    while not ended.is_set() or not reads:
        found = losses(tmp_path)
        assert all(loss == float(number) for number, loss in found.items())
        for rows in (read(tmp_path, points=3), read(tmp_path, points=30)):
            lows = rows.get("loss/min", rows["step"])
            assert all(low <= end for low, end in zip(lows, rows["step"], strict=True))
        backup = tmp_path / f"backup-{reads % 2}"
        shutil.rmtree(backup, ignore_errors=True)
        if (tmp_path / "a").exists():
            shutil.copytree(tmp_path / "a", backup / "a")
            write(backup, [step(1499, generation=3)])  # an aggregator goes on with it
            found = losses(backup)
            assert all(loss == float(number) for number, loss in found.items()) and 1499 in found
        reads += 1
    thread.join()
    assert len(losses(tmp_path)) == 1499


def test_a_history_that_is_removed_amid_a_read_is_read_to_its_end(long: Path, tmp_path: Path) -> None:
    shutil.copytree(long / "a", tmp_path / "a")
    parts = read_history(tmp_path / "a", MetricsRequest())
    next(parts)
    MetricsHistory(tmp_path).remove("a")
    assert sum(len(part.columns[0].values) // 8 for part in parts) == STEPS - MAX_ROWS
