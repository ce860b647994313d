"""Uploads: whatever happens amid one, a file is complete or absent, and what was written counts."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.files_pb2 import FileRef
from services.errors import Refused
from services.files.errors import FileDamaged, NoRoom, UploadUnderWay
from services.files.store import FileStore
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


def test_bytes_of_another_file_are_not_stored(tmp_path: Path) -> None:
    store, ref = FileStore(tmp_path), make_ref(b"right")
    with pytest.raises(FileDamaged, match="upload it again"):
        upload(store, b"wrong", ref)
    assert list(tmp_path.iterdir()) == []
    with store.begin(ref, 0) as writing, pytest.raises(Refused, match="more than the 5 bytes"):
        writing.write(b"right and more")


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
        monkeypatch.setattr("services.files.upload.hit_failpoint", full)
        with pytest.raises(NoRoom, match="No space left on device"):
            writing.write(b"tent")
    monkeypatch.undo()
    assert store.offset(ref) == 3
    upload(store, b"content")
