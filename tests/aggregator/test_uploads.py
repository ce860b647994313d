"""Caps on uploads: each refuses by name, holds across restarts, and lets files that no job needs make room."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.uploads import Uploads
from protos.files_pb2 import FileRef
from services.caps import GB, Cap, CapReached, Caps
from services.errors import Refused
from services.files.errors import NoRoom
from services.files.store import FileStore
from services.protocol.file_refs import make_ref
from services.transport.access.enforcement import UNKNOWN_CALLER, Caller
from services.transport.access.permissions import CallerKind

ANN, BOB = Caller(CallerKind.PERSON, "ann"), Caller(CallerKind.ADMIN, "bob")
WORKER = Caller(CallerKind.WORKER, "w")


class Aggregator:
    """The uploads of an aggregator, over restarts."""

    def __init__(self, folder: Path, **caps: int) -> None:
        self.folder = folder
        self.caps = Caps(**caps)
        self.reached: list[Cap] = []
        self.start()

    def start(self) -> None:
        self.store = FileStore(self.folder / "files")
        self.uploads = Uploads(self.folder / "uploads.json", self.store, self.caps, self.reached.append)

    def upload(self, content: bytes, caller: Caller = ANN, used_seconds: int = 0) -> str:
        ref = make_ref(content)
        self.uploads.admit([ref], caller)
        self.store.put(content)
        os.utime(self.store.path_of(ref.sha256), (used_seconds, used_seconds))
        return ref.sha256

    def has(self, content: bytes) -> bool:
        return self.store.has([make_ref(content)])


def large(name: str, size: int) -> FileRef:
    return FileRef(sha256=make_ref(name.encode()).sha256, size=size)


def test_a_person_has_a_number_of_files_that_jobs_need(tmp_path: Path) -> None:
    here = Aggregator(tmp_path, uploads=3, uploads_per_person=2)
    needed = frozenset({here.upload(b"1"), here.upload(b"2")})
    here.store.keep_inputs("job", needed)
    here.start()  # the record is on disk
    here.store.keep_inputs("job", needed)
    with pytest.raises(CapReached) as caught:
        here.upload(b"3")
    assert str(caught.value) == (
        "person ann: jobs need 2 files, expected at most 2 (--max-uploads-per-person of the aggregator); submit again "
        "when jobs have ended, or copy the data to the hosts and give --no-upload"
    )
    here.upload(b"1")  # a file that is here is no new one
    here.upload(b"3", BOB)
    here.store.keep_inputs("job", needed | {make_ref(b"3").sha256})
    with pytest.raises(
        CapReached, match=r"uploads: jobs need 3 files, expected at most 3 \(--max-uploads of"
    ):
        here.upload(b"4", BOB)
    assert here.reached == [Cap.UPLOADS_PER_PERSON, Cap.UPLOADS]
    here.upload(b"layout", WORKER)  # files of roles are not capped


def test_bytes_count_from_the_begin_of_an_upload_on(tmp_path: Path) -> None:
    here = Aggregator(tmp_path, upload_gb=3, upload_gb_per_person=2)
    first = large("first", 3 * GB // 2)
    here.uploads.admit([first], ANN)
    here.store.keep_inputs("job", frozenset({first.sha256}))
    with pytest.raises(CapReached) as caught:
        here.uploads.admit([large("second", GB)], ANN)
    assert str(caught.value) == (
        "person ann: this file has 1.0 GB and those that jobs need 1.5 GB, expected at most 2 GB in all "
        "(--max-upload-gb-per-person of the aggregator); submit again when jobs have ended, or copy the data to the "
        "hosts and give --no-upload"
    )
    with pytest.raises(CapReached, match=r"uploads: .*3 GB in all \(--max-upload-gb of"):
        here.uploads.admit([large("third", 2 * GB)], BOB)
    assert here.reached == [Cap.UPLOAD_BYTES_PER_PERSON, Cap.UPLOAD_BYTES]


def test_files_that_no_job_needs_make_room_the_longest_unused_first(tmp_path: Path) -> None:
    here = Aggregator(tmp_path, uploads_per_person=3)
    here.upload(b"new", used_seconds=3)
    here.upload(b"old", used_seconds=1)
    here.upload(b"bob's", BOB)
    here.store.keep_inputs("job", frozenset({here.upload(b"needed", used_seconds=0)}))
    here.upload(b"another")
    assert [here.has(each) for each in (b"new", b"old", b"needed", b"bob's")] == [True, False, True, True]
    with pytest.raises(CapReached):
        here.uploads.admit([large("x", 101 * GB)], ANN)
    assert here.has(b"new"), "what can't fit pushes nothing out"


def test_the_files_of_a_job_are_admitted_together_or_not_at_all(tmp_path: Path) -> None:
    here = Aggregator(tmp_path, uploads_per_person=3)
    here.upload(b"old")
    with pytest.raises(CapReached):
        here.uploads.admit([large(name, 1) for name in "abcd"], ANN)
    here.uploads.admit([large(name, 1) for name in "abc"], ANN)
    assert not here.has(b"old"), "it made room"
    here.start()
    here.uploads.admit([large("a", 1)], ANN)
    assert here.reached == [Cap.UPLOADS_PER_PERSON]


def test_a_file_counts_for_its_first_uploader_while_it_is_here(tmp_path: Path) -> None:
    here = Aggregator(tmp_path, uploads_per_person=1)
    here.store.keep_inputs("job", frozenset({here.upload(b"shared")}))
    here.upload(b"shared", BOB)
    here.upload(b"bob's", BOB)
    here.store.path_of(make_ref(b"shared").sha256).unlink()
    here.store.release("job")
    here.upload(b"ann's")
    here.store.keep_inputs("job", frozenset({make_ref(b"bob's").sha256}))
    with pytest.raises(CapReached, match="person bob"):
        here.upload(b"shared", BOB)


def test_files_that_are_gone_do_not_count(tmp_path: Path) -> None:
    here = Aggregator(tmp_path, uploads_per_person=1)
    here.store.path_of(here.upload(b"1")).unlink()
    here.upload(b"2")
    assert here.reached == []


def test_without_security_only_the_caps_of_all_apply(tmp_path: Path) -> None:
    here = Aggregator(tmp_path, uploads=2, uploads_per_person=1)
    here.store.keep_inputs("job", frozenset(here.upload(each, UNKNOWN_CALLER) for each in (b"1", b"2")))
    with pytest.raises(CapReached, match="uploads: "):
        here.upload(b"3", UNKNOWN_CALLER)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'[{"sha256": 1}]', b"[" * 100_000, b"\xff", b"null"])
def test_a_damaged_record_is_made_again(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "uploads.json").write_bytes(content)
    here = Aggregator(tmp_path, uploads_per_person=1)
    here.upload(b"1")
    assert "uploads.json is damaged" in caplog.text
    here.start()
    here.store.keep_inputs("job", frozenset({make_ref(b"1").sha256}))
    with pytest.raises(CapReached):
        here.upload(b"2")


def test_a_record_that_could_not_be_written_is_written_by_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Aggregator(tmp_path, uploads_per_person=1)

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("aggregator.uploads.replace_file", full)
        with pytest.raises(NoRoom, match="No space left on device"):
            here.uploads.admit([make_ref(b"1")], ANN)
    needed = frozenset({here.upload(b"1")})
    here.start()
    here.store.keep_inputs("job", needed)
    with pytest.raises(CapReached):
        here.upload(b"2")


def test_a_name_that_is_no_sha256_is_refused(tmp_path: Path) -> None:
    here = Aggregator(tmp_path)
    with pytest.raises(Refused, match="64 lower-case hexadecimal digits"):
        here.uploads.admit([FileRef(sha256="../x", size=1)], ANN)
    assert not (tmp_path / "uploads.json").exists()


@settings(max_examples=20, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([ANN, BOB]), st.booleans(), st.booleans()), max_size=25
    )
)
def test_no_order_of_uploads_passes_a_cap(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, Caller, bool, bool]]
) -> None:
    here = Aggregator(tmp_path_factory.mktemp("any"), uploads=4, uploads_per_person=3)
    needed: frozenset[str] = frozenset()
    for number, (name, caller, is_needed, restarts) in enumerate(steps):
        content = b"%d" % name
        try:
            sha256 = here.upload(content, caller, used_seconds=number)
            needed |= {sha256} if is_needed else frozenset()
        except CapReached:
            assert len(needed) >= 3
        if restarts:
            here.start()
        here.store.keep_inputs("job", needed)
        stored = {path.name for path in (here.folder / "files").iterdir()}
        assert needed <= stored
        assert len(stored) <= 4
