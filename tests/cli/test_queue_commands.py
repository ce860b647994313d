"""Tests of `tiermesh queue`: what it refuses in one line, and what it prints."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from aggregator.storage.schema import FORMAT
from cli.main import main
from services.errors import ExitCode
from services.runtime.cluster_identity import StateDirUse
from tests.aggregator.storage.test_backup import make_queue


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a queue in `state`, its backup `good`, and the queue of another cluster in `other`."""
    folder = tmp_path_factory.mktemp("made")
    make_queue(folder / "state")
    make_queue(folder / "other")
    assert main(["queue", "backup", "--state-dir", str(folder / "state"), "-o", str(folder / "good")]) == 0
    return folder


@pytest.fixture(autouse=True)
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a copy of `made`, with an empty state dir `new` and odd files."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    (tmp_path / "new").mkdir()
    os.mkfifo("pipe")
    Path("empty").touch()
    Path("text").write_text("no queue\n" * 1000)
    Path("short").write_bytes(Path("good").read_bytes()[:20_000])
    Path("fifo-state").mkdir()
    os.mkfifo("fifo-state/queue.sqlite")
    return tmp_path


def make_newer() -> None:
    Path("newer").write_bytes(Path("good").read_bytes())
    with sqlite3.connect("newer") as connection:
        connection.execute(f"PRAGMA user_version = {FORMAT + 1}")
    connection.close()


def make_database() -> None:
    with sqlite3.connect("database") as connection:
        connection.execute("CREATE TABLE photos (name TEXT)")
    connection.close()


def nothing() -> None:
    """Prepare nothing."""


BACKUP = {
    "no state dir": ("--state-dir missing -o new/b", "no such file"),
    "a state dir without a queue": ("--state-dir new -o b", "new/queue.sqlite: no such file"),
    "a queue that is a pipe": ("--state-dir fifo-state -o b", "is a pipe, expected a regular file"),
    "no output": ("--state-dir state", "Missing option '--output'"),
    "a file that exists": ("--state-dir state -o good", "exists already; give another path, or --force"),
    "a folder": ("--state-dir state -o new --force", "is no regular file"),
    "a pipe": ("--state-dir state -o pipe --force", "is no regular file"),
    "a missing folder": ("--state-dir state -o missing/b", "its folder does not exist"),
    "the queue itself": ("--state-dir state -o state/queue.sqlite --force", "belongs to the queue itself"),
    "the queue's journal": ("--state-dir state -o state/queue.sqlite-journal --force", "the queue itself"),
    "a name that is too long": (f"--state-dir state -o {'x' * 300}", "correct the path"),
}  # fmt: skip


@pytest.mark.parametrize("case", BACKUP)
def test_a_backup_is_refused_in_one_line(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, fact = BACKUP[case]
    before = {path: path.lstat().st_mtime_ns for path in Path().rglob("*")}
    assert main(["queue", "backup", *words.split()]) == ExitCode.REFUSED
    (line,) = capsys.readouterr().err.splitlines()
    assert fact in line and len(line) <= 310
    assert before == {path: path.lstat().st_mtime_ns for path in Path().rglob("*")}


RESTORE: dict[str, tuple[Callable[[], None], str, str]] = {
    "no file": (nothing, "missing --state-dir new", "missing: no such file"),
    "a pipe": (nothing, "pipe --state-dir new", "is a pipe, expected a regular file"),
    "a folder": (nothing, "state --state-dir new", "is a folder, expected a regular file"),
    "an empty file": (nothing, "empty --state-dir new", "backup empty: damaged, or no queue"),
    "a text": (nothing, "text --state-dir new", "damaged, or no queue (file is not a database)"),
    "another database": (make_database, "database --state-dir new", "damaged, or no queue"),
    "half of a backup": (nothing, "short --state-dir new", "damaged, or no queue"),
    "a newer format": (make_newer, "newer --state-dir new", f"format {FORMAT + 1}, of a newer version"),
    "another cluster": (nothing, "good --state-dir other", "--adopt to move its jobs"),
    "no state dir": (nothing, "good --state-dir missing", "create it for the aggregator's user"),
    "a state dir that is a file": (nothing, "good --state-dir text", "is no folder"),
    "a queue that is a pipe": (nothing, "good --state-dir fifo-state", "is a pipe, expected a regular file"),
}


@pytest.mark.parametrize("case", RESTORE)
def test_a_restore_is_refused_in_one_line(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    prepare, words, fact = RESTORE[case]
    prepare()
    before = {path: path.lstat().st_size for path in Path().rglob("*") if path.name != "cluster.lock"}
    capsys.readouterr()
    assert main(["queue", "restore", *words.split()]) == ExitCode.REFUSED
    (line,) = capsys.readouterr().err.splitlines()
    assert fact in line and len(line) <= 310
    assert before == {path: path.lstat().st_size for path in Path().rglob("*") if path.name != "cluster.lock"}


def test_a_restore_below_a_running_aggregator_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    use = StateDirUse(Path("state"))
    try:
        assert main(["queue", "restore", "good", "--state-dir", "state"]) == ExitCode.NOT_YET
    finally:
        use.close()
    assert "--state-dir state: a daemon uses it; stop the daemon first" in capsys.readouterr().err


def test_results_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> dict[str, object]:
        capsys.readouterr()
        assert main(["queue", *words, "--json"]) == 0
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert isinstance(result, dict)
        return result

    made = run("backup", "--state-dir", "state", "-o", "good", "--force")
    checked = run("check", "good")
    restored = run("restore", "good", "--state-dir", "state")
    assert {**made, "file": "good"} == checked
    assert (made["jobs"], made["live_jobs"], made["epoch"], made["format"]) == (3, 2, 1, FORMAT)
    assert restored["replaced"] == "state/queue.sqlite.replaced-1"
    assert isinstance(restored["epoch"], int) and restored["epoch"] > 1
    again = run("check", "state/queue.sqlite.replaced-1")
    assert again["made_seconds"] is None
