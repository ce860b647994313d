"""The index of --data-dir: what is served by SHA-256, and what never is."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import aggregator.data_folder
from aggregator.data_folder import SETTLED_SECONDS, DataFolder, check_data_dir
from services.errors import Refused
from services.protocol.file_refs import make_ref

NOW = 1e9


def write(path: Path, content: bytes, changed_seconds: float = NOW - 100) -> str:
    """Write a file that was last changed then; return its SHA-256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (changed_seconds, changed_seconds))
    return make_ref(content).sha256


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> DataFolder:
    return make(data, tmp_path)


def make(data: Path, tmp_path: Path, now: float = NOW) -> DataFolder:
    return DataFolder(data, tmp_path / "index.json", clock=lambda: now)


def read(folder: DataFolder, sha256: str) -> bytes | None:
    file = folder.open(sha256)
    if file is None:
        assert folder.size_of(sha256) is None
        return None
    with file:
        content = file.read()
    assert folder.size_of(sha256) == len(content)
    return content


def test_files_of_all_subfolders_are_served_after_a_scan(folder: DataFolder, data: Path) -> None:
    names = [write(data / "a.txt", b"a"), write(data / "deep/er/b.bin", b"bb"), write(data / "empty", b"")]
    assert [read(folder, each) for each in names] == [None] * 3
    folder.scan()
    assert [read(folder, each) for each in names] == [b"a", b"bb", b""]
    assert read(folder, make_ref(b"other").sha256) is None


def test_a_file_that_changes_is_not_served_until_the_next_scan(folder: DataFolder, data: Path) -> None:
    before = write(data / "a.txt", b"before")
    folder.scan()
    after = write(data / "a.txt", b"after!", NOW - 50)
    assert [read(folder, each) for each in (before, after)] == [None, None]
    folder.scan()
    assert [read(folder, each) for each in (before, after)] == [None, b"after!"]
    (data / "a.txt").unlink()
    assert read(folder, after) is None
    folder.scan()
    assert read(folder, after) is None


def test_a_file_that_is_being_copied_is_left_alone(data: Path, tmp_path: Path) -> None:
    name = write(data / "a.txt", b"half", NOW - SETTLED_SECONDS / 2)
    folder = make(data, tmp_path)
    folder.scan()
    assert read(folder, name) is None
    later = make(data, tmp_path, NOW + SETTLED_SECONDS)
    later.scan()
    assert read(later, name) == b"half"


def test_nothing_outside_of_the_folder_is_served(folder: DataFolder, data: Path, tmp_path: Path) -> None:
    secret = write(tmp_path / "secret.txt", b"secret")
    write(tmp_path / "secrets/more.txt", b"more")
    inside = write(data / "real.txt", b"inside")
    (data / "link.txt").symlink_to(tmp_path / "secret.txt")
    (data / "folder").symlink_to(tmp_path / "secrets")
    (data / "alias.txt").symlink_to(data / "real.txt")
    (data / "nothing.txt").symlink_to(data / "missing.txt")
    os.mkfifo(data / "pipe")
    folder.scan()
    assert read(folder, secret) is None
    assert read(folder, make_ref(b"more").sha256) is None
    assert read(folder, inside) == b"inside"


def test_a_folder_that_becomes_a_link_is_not_followed(folder: DataFolder, data: Path, tmp_path: Path) -> None:
    name = write(data / "sub/a.txt", b"same")
    folder.scan()
    (data / "sub").rename(tmp_path / "moved")
    (data / "sub").symlink_to(tmp_path / "moved")
    assert read(folder, name) is None


def test_a_restart_hashes_nothing_again(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write(data / "a.txt", b"a")
    make(data, tmp_path).scan()
    hashed: list[Path] = []
    hash_file = DataFolder._hash
    monkeypatch.setattr(
        DataFolder, "_hash", lambda self, path, stamp: hashed.append(path) or hash_file(self, path, stamp)
    )
    later = make(data, tmp_path)
    later._load()
    assert read(later, name) == b"a", "before the first scan"
    later.scan()
    assert (read(later, name), hashed) == (b"a", [])
    (tmp_path / "index.json").write_bytes(b"[[1]]")
    damaged = make(data, tmp_path)
    damaged._load()
    damaged.scan()
    assert (read(damaged, name), len(hashed)) == (b"a", 1)


def test_the_number_of_files_is_bounded_and_told(
    folder: DataFolder, data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names = [write(data / f"{number}.txt", b"%d" % number) for number in range(9)]
    monkeypatch.setattr(aggregator.data_folder, "MAX_FILES", 5)
    folder.scan()
    folder.scan()
    assert sum(read(folder, each) is not None for each in names) == 4, "the folder counts too"
    assert caplog.text.count("has more than 5 files and folders; the others are not served") == 1


def test_it_runs_in_the_background_and_ends_at_once(folder: DataFolder, data: Path) -> None:
    name = write(data / "a.txt", b"a")

    async def scenario() -> None:
        running = asyncio.ensure_future(folder.run())
        while folder.size_of(name) is None:
            await asyncio.sleep(0.001)
        assert read(folder, name) == b"a"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_data_dir_that_is_none_is_refused(tmp_path: Path) -> None:
    check_data_dir(tmp_path)
    (tmp_path / "file").write_text("x")
    for place in ("missing", "file"):
        with pytest.raises(Refused, match=f"--data-dir .*{place}: no such folder"):
            check_data_dir(tmp_path / place)
