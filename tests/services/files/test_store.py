"""The store of files: which are served, and which are removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from protos.files_pb2 import FileRef
from services.errors import Refused
from services.files.errors import FileDamaged, NoRoom
from services.files.store import UNUSED_SECONDS, FileStore
from services.protocol.file_refs import make_ref

MOST = 1 << 20


@pytest.mark.parametrize(
    "name", ["", "../x", "a" * 63, "A" * 64, "/" * 64, "g" * 64, "0" * 64 + "\n", "\0" * 64]
)
def test_only_a_sha256_names_a_file(tmp_path: Path, name: str) -> None:
    store = FileStore(tmp_path / "files")
    ref = FileRef(sha256=name, size=3)
    calls: list[Callable[[], Any]] = [
        lambda: store.offset(ref),
        lambda: store.begin(ref, 0),
        lambda: store.open(name),
        lambda: store.read(ref, MOST),
    ]
    for call in calls:
        with pytest.raises(Refused, match="64 lower-case hexadecimal digits"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_a_file_damaged_on_the_disk_is_missing(tmp_path: Path) -> None:
    store, ref = FileStore(tmp_path), make_ref(b"right")
    store.put(b"right")
    (tmp_path / ref.sha256).write_bytes(b"wrong")
    with pytest.raises(FileDamaged, match="damaged on the disk"):
        store.read(ref, MOST)
    assert store.offset(ref) == 0
    store.put(b"right")
    (tmp_path / ref.sha256).write_bytes(b"cut")
    assert store.offset(ref) == 0, "a file of another size is not complete"


@pytest.mark.parametrize("size", [0, 3, 6, MOST + 1])
def test_a_wrong_size_in_a_reference_harms_no_file(tmp_path: Path, size: int) -> None:
    store, ref = FileStore(tmp_path), make_ref(b"right")
    store.put(b"right")
    wrong = FileRef(sha256=ref.sha256, size=size)
    assert store.offset(wrong) == 0
    with pytest.raises(Refused, match=r"expected at most|its reference says"):
        store.read(wrong, MOST)
    with pytest.raises(Refused, match="its reference says"):
        store.read(FileRef(sha256=ref.sha256, size=1), 4)
    writing = store.begin(wrong, 0)
    assert writing is not None
    with writing, pytest.raises((FileDamaged, Refused)):
        writing.write(b"right")
        writing.finish()
    assert store.read(ref, MOST) == b"right"


def test_unused_files_give_way_and_kept_ones_do_not(tmp_path: Path) -> None:
    store = FileStore(tmp_path, max_store_bytes=10)
    for number, content in enumerate((b"1234", b"5678")):
        store.put(content)
        os.utime(tmp_path / make_ref(content).sha256, (number, number))
    store.keep("job", [make_ref(b"1234")])
    store.put(b"abcde")
    assert not store.has([make_ref(b"5678")])
    assert store.has([make_ref(b"1234"), make_ref(b"abcde")])
    with pytest.raises(NoRoom, match="may have 10 bytes"):
        store.put(b"too large")


def test_a_use_does_not_change_the_time_of_the_last_change(tmp_path: Path) -> None:
    store = FileStore(tmp_path, max_store_bytes=10)
    paths = []
    for number, content in enumerate((b"1234", b"5678")):
        paths.append(store.path_of(store.put(content).sha256))
        os.utime(paths[-1], (number, number))
    held = store.hold(paths[0].name)
    assert held is not None
    held.close()
    assert store.offset(make_ref(b"1234")) is None
    assert paths[0].stat().st_mtime == 0.0
    store.put(b"abcde")
    assert [path.exists() for path in paths] == [True, False], "the one that was used last stays"


def test_the_files_of_a_job_that_has_ended_are_removed_once_unused(tmp_path: Path) -> None:
    now = 1e9
    store = FileStore(tmp_path, clock=lambda: now)
    shared, own, stray = b"shared", b"own", b"stray"
    for content in (shared, own, stray):
        store.put(content)
        os.utime(tmp_path / make_ref(content).sha256, (now, now))
    store.keep("a", [make_ref(shared), make_ref(own)])
    store.keep("b", [make_ref(shared)])
    store.release("a")
    now += UNUSED_SECONDS + 1
    store.release("another")
    assert [path.name for path in tmp_path.iterdir()] == [make_ref(shared).sha256]
    store.release("b")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_a_peer_has_just_heard_of_outlives_the_only_job_that_keeps_it(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put(b"content")
    store.keep("a", [make_ref(b"content")])
    assert store.offset(make_ref(b"content")) is None, "the peer won't send it"
    store.release("a")
    store.keep("b", [make_ref(b"content")])
    assert store.read(make_ref(b"content"), MOST) == b"content"


def test_a_file_larger_than_its_reader_takes_is_refused(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put(b"content")
    with pytest.raises(Refused, match="7 bytes, expected at most 3"):
        store.read(make_ref(b"content"), 3)
    with pytest.raises(Refused, match="expected at most"):
        store.begin(FileRef(sha256="0" * 64, size=1 << 60), 0)


def test_what_a_live_job_names_stays_until_the_job_ends(tmp_path: Path) -> None:
    now = 1e9
    store = FileStore(tmp_path, max_store_bytes=10, clock=lambda: now)
    name = make_ref(b"input").sha256
    store.keep_inputs("queued", frozenset({name}))
    store.put(b"input")
    os.utime(tmp_path / name, (0, 0))
    store.release("running")  # another job, which ends before it
    with pytest.raises(NoRoom):
        store.put(b"another")
    assert not store.remove_unkept(name)
    assert store.has([make_ref(b"input")])
    os.utime(tmp_path / name, (0, 0))
    store.release("queued")
    assert list(tmp_path.iterdir()) == []


def test_a_held_file_is_not_removed_by_any_process(tmp_path: Path) -> None:
    one, other = FileStore(tmp_path, max_store_bytes=10), FileStore(tmp_path, max_store_bytes=10)
    name = make_ref(b"in use").sha256
    assert one.hold(name) is None
    one.put(b"in use")
    held = one.hold(name)
    assert held is not None
    with held:
        with pytest.raises(NoRoom):
            other.put(b"another")
        assert not other.remove_unkept(name)
        other.release("some job")
        assert held.read() == b"in use" == one.path_of(name).read_bytes()
    other.put(b"another")
    assert one.hold(name) is None


def test_an_upload_larger_than_the_whole_store_is_refused(tmp_path: Path) -> None:
    store = FileStore(tmp_path, max_store_bytes=10)
    store.put(b"1234567890")
    with pytest.raises(Refused, match="12 bytes, but all files together may have 10 bytes"):
        store.put(b"123456789012")
    assert store.has([make_ref(b"1234567890")]), "nothing made room for it"


class Shelf:
    """A library of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def size_of(self, sha256: str) -> int | None:
        return self._path.stat().st_size if sha256 == make_ref(b"on the shelf").sha256 else None

    def open(self, sha256: str) -> IO[bytes] | None:
        return self._path.open("rb") if self.size_of(sha256) is not None else None


def test_a_library_is_read_and_never_written(tmp_path: Path) -> None:
    path = tmp_path / "shelf.txt"
    path.write_bytes(b"on the shelf")
    store, ref = FileStore(tmp_path / "files", library=Shelf(path)), make_ref(b"on the shelf")
    assert store.has([ref])
    assert store.read(ref, MOST) == b"on the shelf"
    assert store.offset(make_ref(b"something else")) == 0
    assert store.begin(ref, 0) is None
    assert store.remove_unkept(ref.sha256), "nothing of it is in the folder"
    store.release("some job")
    assert path.read_bytes() == b"on the shelf"
    assert not (tmp_path / "files").exists()
