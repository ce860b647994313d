"""The history on disk: every step has its row, whatever is redone, cut short, lost or started again."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.history.columns import COLUMNS, STEP_RECORD, SUMMARY_RECORD
from aggregator.history.files import LEVELS, RecordFile
from aggregator.history.writer import MOST_NAMES, MetricsHistory
from protos.jobs_pb2 import JobEvent
from tests.aggregator.history.rows import STOPPED, evaluation, full_step, losses, read, step, write


def test_a_step_has_at_most_96_bytes() -> None:
    each = STEP_RECORD.itemsize + sum(SUMMARY_RECORD.itemsize / level for level in LEVELS[1:])
    assert each <= 96


def test_a_row_has_all_figures_of_its_step_and_of_the_evaluation_after_it(tmp_path: Path) -> None:
    write(tmp_path, [full_step(1), evaluation(1, 4.125)])
    row = {name: values[0] for name, values in read(tmp_path).items()}
    assert tuple(row) == COLUMNS
    assert row == {
        "step": 1,
        "unix_seconds": 1001.0,
        "generation": 1,
        "loss": 1.0,
        "grad_norm": 2.5,
        "learning_rate": 3e-4,
        "step_seconds": 1.0,
        "compute_seconds": 0.5,
        "wire_seconds": 0.125,
        "update_seconds": 0.25,
        "wait_seconds": 0.125,
        "tokens_per_second": 100.0,
        "mfu": 0.25,
        "validation_loss": 4.125,
        "waited_for": "w1",
    }


def test_what_is_unknown_has_no_value(tmp_path: Path) -> None:
    write(tmp_path, [evaluation(0, 4.0), JobEvent(job=step(1).job, kind="step", seconds=3.0)])
    rows = read(tmp_path)
    assert rows["step"] == [0, 1]
    assert (rows["validation_loss"], rows["loss"]) == ([4.0, None], [None, 1.0])
    assert rows["mfu"] == rows["step_seconds"] == [None, None]
    assert rows["waited_for"] == ["", ""]


def test_a_step_that_is_redone_replaces_its_row_and_those_after_it(tmp_path: Path) -> None:
    write(tmp_path, [step(each) for each in range(1, 201)])
    write(tmp_path, [step(each, generation=2, loss=-each) for each in range(70, 131)])
    found = losses(tmp_path)
    assert found == {each: each if each < 70 else -each for each in range(1, 131)}
    assert len(RecordFile(tmp_path / "a", 64)) == 2, "summaries of the steps that are void are gone"
    assert read(tmp_path, points=2)["loss/min"] == [-128.0, -130.0]


def test_a_commit_that_is_told_again_keeps_what_was_known_of_it(tmp_path: Path) -> None:
    again = JobEvent(job=step(3).job, kind="step", seconds=9.0, grad_norm=7.0)
    again.job.ClearField("loss")
    write(tmp_path, [step(2), full_step(3), evaluation(3, 1.5)])
    write(tmp_path, [again])
    rows = read(tmp_path, first_step=3)
    assert (rows["loss"], rows["grad_norm"], rows["validation_loss"]) == ([3.0], [7.0], [1.5])


def test_going_back_before_the_first_known_step_begins_again(tmp_path: Path) -> None:
    write(tmp_path, [step(each) for each in range(500, 700)])
    write(tmp_path, [step(400, generation=2), step(401, generation=2)])
    assert losses(tmp_path) == {400: 400.0, 401: 401.0}


def test_an_evaluation_after_going_back_keeps_its_step(tmp_path: Path) -> None:
    write(tmp_path, [step(each) for each in range(1, 9)])
    write(tmp_path, [evaluation(4, 2.5, generation=2)])
    rows = read(tmp_path)
    assert rows["step"] == [1, 2, 3, 4]
    assert (rows["loss"][3], rows["validation_loss"][3], rows["generation"][3]) == (4.0, 2.5, 1)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a history of 4,096 steps."""
    folder = tmp_path_factory.mktemp("written")
    write(folder, [step(each) for each in range(1, 4097)])
    return folder


@pytest.mark.parametrize("level", LEVELS)
def test_a_kill_amid_a_write_costs_at_most_the_last_row(written: Path, tmp_path: Path, level: int) -> None:
    count = 4096
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    path = RecordFile(tmp_path / "a", level).path
    size, record = path.stat().st_size, (STEP_RECORD if level == 1 else SUMMARY_RECORD).itemsize
    before = read(tmp_path, points=64)
    for missing in (1, record // 2, record - 1, record):
        os.truncate(path, size - missing)
        found = losses(tmp_path)
        assert list(found) == list(range(1, count + (level > 1))), "to read"
        write(tmp_path, [step(count)])
        assert losses(tmp_path) == {each: float(each) for each in range(1, count + 1)}
        assert read(tmp_path, points=64) == before
        assert path.stat().st_size == size


def test_a_record_whose_end_never_reached_the_disk_is_no_row(tmp_path: Path) -> None:
    write(tmp_path, [step(each) for each in range(1, 4)])
    path = RecordFile(tmp_path / "a", 1).path
    content = bytearray(path.read_bytes())
    content[-40:] = bytes(40)
    path.write_bytes(content)
    assert list(losses(tmp_path)) == [1, 2]
    write(tmp_path, [step(4)])
    assert list(losses(tmp_path)) == [1, 2, 4], "a row that was lost leaves a gap"


def test_summaries_that_are_lost_are_made_again(written: Path, tmp_path: Path) -> None:
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    before = read(tmp_path, points=50)
    for level in LEVELS[1:]:
        RecordFile(tmp_path / "a", level).path.unlink()
    write(tmp_path, [step(4096)])
    assert read(tmp_path, points=50) == before


def test_a_full_disk_costs_rows_and_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    history = MetricsHistory(tmp_path)
    history.record(step(1))
    with monkeypatch.context() as patch:

        def refuse(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "pwrite", refuse)
        for number in range(2, 101):
            history.record(step(number))
    for number in range(101, 201):
        history.record(step(number))
    history.close()
    assert losses(tmp_path) == {each: float(each) for each in (1, *range(101, 201))}
    assert read(tmp_path, points=3)["loss/min"] == [1.0, 129.0]
    (line,) = caplog.messages
    assert line == "job a: rows of its metrics are lost from step 2 on: [Errno 28] No space left on device"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("damage", [b"x" * 32, bytes(32), b"\xff" * 8])
def test_a_damaged_header_is_made_again_from_the_other_files(
    written: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, level: int, damage: bytes
) -> None:
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    before, path = read(tmp_path, points=50), RecordFile(tmp_path / "a", level).path
    content = path.read_bytes()
    path.write_bytes(damage + content[len(damage) :])
    assert read(tmp_path, points=50) == before, "to read"
    write(tmp_path, [step(4096)])
    assert path.read_bytes() == content
    assert read(tmp_path, points=50) == before
    assert caplog.messages == [f"{path}: its header is damaged; it is made again from the other files"]


def test_a_history_without_a_header_costs_its_rows_and_not_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, [step(1)])
    for level in LEVELS:
        RecordFile(tmp_path / "a", level).path.write_bytes(b"x" * 500)
    write(tmp_path, [step(2), step(3)])
    (line,) = caplog.messages
    assert "header is damaged or of another version" in line and "move the folder elsewhere" in line
    shutil.rmtree(tmp_path / "a")
    write(tmp_path, [step(4)])
    assert losses(tmp_path) == {4: 4.0}


def test_a_job_that_stops_and_goes_on_has_one_history(tmp_path: Path) -> None:
    write(tmp_path, [step(1), STOPPED, step(2), STOPPED])
    assert list(losses(tmp_path)) == [1, 2]


def test_names_of_workers_are_kept_up_to_a_number(tmp_path: Path) -> None:
    most = MOST_NAMES
    write(tmp_path, [step(each, waited_for=f"worker-{each}") for each in range(1, most + 3)])
    with (tmp_path / "a" / "names").open("ab") as file:
        file.write(b"cut short")
    write(tmp_path, [step(most + 3, waited_for="worker-7")])
    texts = read(tmp_path, columns=["waited_for"])["waited_for"]
    assert texts == [f"worker-{each}" for each in range(1, most + 1)] + ["", "", "worker-7"]


def test_size_and_removal(tmp_path: Path) -> None:
    history = MetricsHistory(tmp_path)
    assert history.size_bytes("a") == 0
    write(tmp_path, [step(1)])
    assert history.size_bytes("a") == sum(each.stat().st_size for each in (tmp_path / "a").iterdir())
    history.remove("a")
    history.remove("a")
    assert not (tmp_path / "a").exists()


_ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("steps"), st.integers(1, 300)),
        st.tuples(st.just("back"), st.integers(1, 300)),
        st.tuples(st.just("evaluate"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("kill"), st.integers(1, 79)),
    ),
    max_size=12,
)


@settings(max_examples=20, deadline=None)
@given(acts=_ACTS, first=st.integers(0, 100), points=st.integers(1, 20), data=st.data())
def test_whatever_happens_rows_and_summaries_are_those_of_the_newest_generation(
    tmp_path_factory: pytest.TempPathFactory,
    acts: list[tuple[str, int]],
    first: int,
    points: int,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("history")
    history = MetricsHistory(folder)
    at, generation = first, 1
    known: dict[int, float] = {}
    for act, number in acts:
        if act == "steps":
            for _ in range(number):
                at += 1
                known[at] = float(generation * 1000 + at)
                history.record(step(at, generation, loss=known[at]))
        elif act == "back" and at > first:
            at, generation = max(first, at - number), generation + 1
            history.record(step(at + 1, generation, loss=generation * 1000.0))
            at += 1
            known = {each: loss for each, loss in known.items() if each < at} | {at: generation * 1000.0}
        elif act == "evaluate" and at in known:
            history.record(evaluation(at, 1.0, generation))
        elif act in ("restart", "kill"):
            history.close()
            path = folder / "a" / "steps"
            if act == "kill" and known:
                os.truncate(path, path.stat().st_size - number)
                history = MetricsHistory(folder)
                history.record(step(at, generation, loss=known[at]))
            else:
                history = MetricsHistory(folder)
    history.close()
    assert losses(folder) == known
    if known:
        start = data.draw(st.integers(min(known), max(known)))
        rows = read(folder, first_step=start, points=points)
        assert len(rows["step"]) <= points
        assert rows["step"][-1] == max(known)
        low = rows["loss/min"] if "loss/min" in rows else rows["loss"]
        assert min(low) <= min(known[each] for each in known if each >= start)
