"""The store of files: whatever happens amid an upload, a file is complete or absent, and what was written counts."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.files_pb2 import FileRef
from services.errors import Refused
from services.files.store import (
    UNUSED_SECONDS,
    FileDamaged,
    FileMissing,
    FileStore,
    NoRoom,
    UploadUnderWay,
)
from services.protocol.file_refs import make_ref

MOST = 1 << 20


def upload(store: FileStore, content: bytes, ref: FileRef | None = None) -> None:
    ref = ref or make_ref(content)
    offset = store.offset(ref)
    assert offset is not None
    with store.begin(ref, offset) as writing:
        writing.write(content[offset:])
        writing.finish()


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=4))
def test_an_upload_interrupted_anywhere_continues(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, cuts: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("store")
    ref = make_ref(content)
    for cut in cuts:
        store = FileStore(folder)  # a new process each time
        offset = store.offset(ref)
        assert offset is not None
        with store.begin(ref, offset) as writing:
            writing.write(content[offset : max(offset, min(cut, len(content)))])
    store = FileStore(folder)
    assert store.offset(ref) == min(len(content), max((0, *cuts)))
    upload(store, content)
    assert store.read(ref, MOST) == content
    assert [path.name for path in folder.iterdir()] == [ref.sha256]


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


def test_bytes_of_another_file_are_not_stored(tmp_path: Path) -> None:
    store, ref = FileStore(tmp_path), make_ref(b"right")
    with pytest.raises(FileDamaged, match="upload it again"):
        upload(store, b"wrong", ref)
    assert list(tmp_path.iterdir()) == []
    with store.begin(ref, 0) as writing, pytest.raises(Refused, match="more than the 5 bytes"):
        writing.write(b"right and more")


def test_a_file_damaged_on_the_disk_is_missing(tmp_path: Path) -> None:
    store, ref = FileStore(tmp_path), make_ref(b"right")
    upload(store, b"right")
    (tmp_path / ref.sha256).write_bytes(b"wrong")
    with pytest.raises(FileDamaged, match="damaged on the disk"):
        store.read(ref, MOST)
    assert store.offset(ref) == 0
    upload(store, b"right")
    (tmp_path / ref.sha256).write_bytes(b"cut")
    assert store.offset(ref) == 0, "a file of another size is not complete"


def test_two_peers_that_upload_the_same_file(tmp_path: Path) -> None:
    store, other, ref = FileStore(tmp_path), FileStore(tmp_path), make_ref(b"content")
    with store.begin(ref, 0) as writing:
        for each in (store, other):
            with pytest.raises(UploadUnderWay, match="another peer"):
                each.begin(ref, 0)
        store.release("some job")
        writing.write(b"content")
        writing.finish()
    assert other.offset(ref) is None
    with pytest.raises(UploadUnderWay, match="complete already"):
        store.begin(ref, 0)


def test_an_upload_that_begins_as_another_one_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other, ref = FileStore(tmp_path), FileStore(tmp_path), make_ref(b"content")
    monkeypatch.setattr(store, "_make_room", lambda *_: upload(other, b"content"))  # after the check
    with pytest.raises(UploadUnderWay, match="another peer"):
        store.begin(ref, 0)
    assert [each.name for each in tmp_path.iterdir()] == [ref.sha256], "no temporary file stays"


def test_two_threads_that_upload_at_once(tmp_path: Path) -> None:
    content = os.urandom(1 << 16)
    start, stored = threading.Barrier(4), []

    def run() -> None:
        store = FileStore(tmp_path)
        start.wait()
        while store.offset(make_ref(content)) is not None:
            try:
                upload(store, content)
                stored.append(1)
            except (UploadUnderWay, AssertionError):
                continue

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stored == [1]
    assert FileStore(tmp_path).read(make_ref(content), MOST) == content


def test_a_full_disk_is_told_and_the_upload_continues_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ref = FileStore(tmp_path), make_ref(b"content")

    def full(name: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with store.begin(ref, 0) as writing:
        writing.write(b"con")
        monkeypatch.setattr("services.files.store.hit_failpoint", full)
        with pytest.raises(NoRoom, match="No space left on device"):
            writing.write(b"tent")
    monkeypatch.undo()
    assert store.offset(ref) == 3
    upload(store, b"content")


def test_unused_files_give_way_and_kept_ones_do_not(tmp_path: Path) -> None:
    store = FileStore(tmp_path, max_store_bytes=10)
    for number, content in enumerate((b"1234", b"5678")):
        upload(store, content)
        os.utime(tmp_path / make_ref(content).sha256, (number, number))
    store.keep("job", [make_ref(b"1234")])
    upload(store, b"abcde")
    assert not store.has([make_ref(b"5678")])
    assert store.has([make_ref(b"1234"), make_ref(b"abcde")])
    with pytest.raises(NoRoom, match="may have 10 bytes"):
        upload(store, b"too large")


def test_the_files_of_a_job_that_has_ended_are_removed_once_unused(tmp_path: Path) -> None:
    now = 1e9
    store = FileStore(tmp_path, clock=lambda: now)
    shared, own, stray = b"shared", b"own", b"stray"
    for content in (shared, own, stray):
        upload(store, content)
        os.utime(tmp_path / make_ref(content).sha256, (now, now))
    store.keep("a", [make_ref(shared), make_ref(own)])
    store.keep("b", [make_ref(shared)])
    spec = store.lend("a", b"spec")
    assert store.read(spec, MOST) == b"spec"
    store.release("a")
    with pytest.raises(FileMissing):
        store.read(spec, MOST)
    now += UNUSED_SECONDS + 1
    store.release("another")
    assert [path.name for path in tmp_path.iterdir()] == [make_ref(shared).sha256]
    store.release_others("c")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_a_peer_has_just_heard_of_outlives_the_only_job_that_keeps_it(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    upload(store, b"content")
    store.keep("a", [make_ref(b"content")])
    assert store.offset(make_ref(b"content")) is None, "the peer won't send it"
    store.release("a")
    store.keep("b", [make_ref(b"content")])
    assert store.read(make_ref(b"content"), MOST) == b"content"


def test_a_file_larger_than_its_reader_takes_is_refused(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    upload(store, b"content")
    with pytest.raises(Refused, match="7 bytes, expected at most 3"):
        store.read(make_ref(b"content"), 3)
    with pytest.raises(Refused, match="expected at most"):
        store.begin(FileRef(sha256="0" * 64, size=1 << 60), 0)
