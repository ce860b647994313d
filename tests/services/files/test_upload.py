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
from services.files.store import MAX_PARTS_OF_WRITER, FileStore
from services.files.upload import Upload
from services.protocol.file_refs import make_ref

MOST = 1 << 20


def upload(store: FileStore, content: bytes, ref: FileRef | None = None) -> None:
    ref = ref or make_ref(content)
    offset = store.offset(ref)
    assert offset is not None
    with begin(store, ref, offset) as writing:
        writing.write(content[offset:])
        writing.finish()


def begin(store: FileStore, ref: FileRef, offset: int, writer: str = "") -> Upload:
    writing = store.begin(ref, offset, writer)
    assert writing is not None
    return writing


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
        with begin(store, ref, offset) as writing:
            writing.write(content[offset : max(offset, min(cut, len(content)))])
    store = FileStore(folder)
    assert store.offset(ref) == min(len(content), max((0, *cuts)))
    upload(store, content)
    assert store.read(ref, MOST) == content
    assert [path.name for path in folder.iterdir()] == [ref.sha256]


def test_bytes_of_another_file_are_not_stored(tmp_path: Path) -> None:
    store, ref = FileStore(tmp_path), make_ref(b"right")
    with pytest.raises(FileDamaged, match="send it again"):
        upload(store, b"wrong", ref)
    assert list(tmp_path.iterdir()) == []
    with begin(store, ref, 0) as writing, pytest.raises(Refused, match="more than the 5 bytes"):
        writing.write(b"right and more")


def test_two_processes_that_upload_the_same_file_into_one_folder(tmp_path: Path) -> None:
    store, other, ref = FileStore(tmp_path), FileStore(tmp_path), make_ref(b"content")
    with begin(store, ref, 0) as writing:
        for each in (store, other):
            with pytest.raises(UploadUnderWay, match="another process"):
                each.begin(ref, 0)
        store.release("some job")
        assert store.reclaim(1 << 30) == 0, "nothing that is under way goes"
        writing.write(b"content")
        writing.finish()
    assert other.offset(ref) is None
    assert store.begin(ref, 0) is None


def test_two_writers_of_a_file_have_a_part_each_and_the_first_wins(tmp_path: Path) -> None:
    store, ref = FileStore(tmp_path), make_ref(b"content")
    with begin(store, ref, 0, "liar") as lying:
        assert lying.write(b"xxx")
        assert store.offset(ref, "honest") == 0, "nobody goes on with what another has made up"
        with begin(store, ref, 0, "slow") as slow, begin(store, ref, 0, "honest") as writing:
            assert writing.write(b"content") and slow.write(b"con")
            writing.finish()
            assert not slow.write(b"tent"), "it learns that the file is complete"
        assert not lying.write(b"tent")
    assert [each.name for each in tmp_path.iterdir()] == [ref.sha256]
    assert store.read(ref, MOST) == b"content"


def test_a_writer_leaves_a_bounded_number_of_parts(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for number in range(MAX_PARTS_OF_WRITER + 5):
        for writer in ("a", "b"):
            with begin(store, make_ref(b"%d" % number), 0, writer) as writing:
                writing.write(b"")
            os.utime(max(tmp_path.iterdir(), key=lambda each: each.stat().st_ctime_ns), (number, number))
    assert len([*tmp_path.iterdir()]) == 2 * MAX_PARTS_OF_WRITER
    assert store.part_bytes(make_ref(b"%d" % number).sha256, "a") == 0


def test_a_part_that_is_longer_than_the_file_starts_again(tmp_path: Path) -> None:
    store, ref = FileStore(tmp_path), make_ref(b"content")
    wrong = FileRef(sha256=ref.sha256, size=100)
    with begin(store, wrong, 0) as writing:
        writing.write(b"x" * 50)
    assert store.offset(ref) == 0
    upload(store, b"content")
    assert store.read(ref, MOST) == b"content"


def test_an_upload_that_begins_as_another_one_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other, ref = FileStore(tmp_path), FileStore(tmp_path), make_ref(b"content")
    monkeypatch.setattr(store, "_make_room", lambda *_: upload(other, b"content"))  # after the check
    assert store.begin(ref, 0, "late") is None
    assert [each.name for each in tmp_path.iterdir()] == [ref.sha256], "no temporary file stays"


def test_two_threads_that_upload_at_once(tmp_path: Path) -> None:
    content = os.urandom(1 << 16)
    start, stored = threading.Barrier(4), []

    def run() -> None:
        store = FileStore(tmp_path)
        start.wait()
        while store.offset(make_ref(content)) is not None:
            try:
                with begin(store, make_ref(content), 0) as writing:
                    writing.write(content)
                    writing.finish()
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


def full_disk(monkeypatch: pytest.MonkeyPatch, folder: Path, room_bytes: int) -> None:
    """Let a folder's writes fail while its files have more than so many bytes."""

    def write(name: str) -> None:
        used = sum(each.stat().st_size for each in folder.iterdir())
        if name == "files.mid-write" and used > room_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("services.files.upload.hit_failpoint", write)


def test_a_full_disk_is_told_and_the_upload_continues_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ref = FileStore(tmp_path), make_ref(b"content")
    with begin(store, ref, 0) as writing:
        writing.write(b"con")
        full_disk(monkeypatch, tmp_path, 0)
        with pytest.raises(NoRoom, match="No space left on device"):
            writing.write(b"tent")
    monkeypatch.undo()
    assert store.offset(ref) == 3
    upload(store, b"content")


def test_what_nobody_needs_makes_room_on_a_full_disk_the_abandoned_parts_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    store.keep("job", [store.put(b"kept")])
    unkept = [store.put(b"old"), store.put(b"new")]
    with begin(store, make_ref(b"abandoned"), 0, "worker") as writing:
        writing.write(b"aband")
    for seconds, ref in enumerate(unkept):
        os.utime(store.path_of(ref.sha256), (seconds, seconds))
    assert store.reclaim(5) == 5
    assert store.part_bytes(make_ref(b"abandoned").sha256, "worker") == 0
    assert store.reclaim(1) == 3
    assert not store.has(unkept[:1]) and store.has(unkept[1:])
    assert store.reclaim(1) == 0, "what was asked for a moment ago stays"
    with begin(store, make_ref(b"another"), 0, "worker") as writing:
        writing.write(b"anoth")
    full_disk(monkeypatch, tmp_path, len(b"kept" + b"new"))
    assert store.put(b"1") == make_ref(b"1"), "once there is room, the write goes on"
    with pytest.raises(NoRoom):
        store.put(b"nothing is left that could go")
    assert store.has([make_ref(b"kept"), make_ref(b"new"), make_ref(b"1")])
