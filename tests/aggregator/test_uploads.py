"""Caps on uploads: each refuses by name, holds across restarts, and lets files that no job needs make room."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.uploads import WORKER_BYTES, Uploads
from protos.files_pb2 import FileRef
from services.caps import GB, Cap, CapReached, Caps
from services.errors import Refused
from services.files.errors import NoRoom
from services.files.store import FileStore
from services.protocol.file_refs import MAX_TEXT_BYTES, make_ref
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
        if not self.store.has([ref]):
            self.uploads.check([ref], caller)
            with self.uploads.reserve(ref, caller) as record:
                writing = self.store.begin(ref, 0)
                assert writing is not None
                with writing:
                    writing.write(content)
                    writing.finish(record)
        os.utime(self.store.path_of(ref.sha256), (used_seconds, used_seconds))
        return ref.sha256

    def has(self, content: bytes) -> bool:
        return self.store.path_of(make_ref(content).sha256).exists()


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
        "person ann: 1 more file and 2 that jobs need, expected at most 2 in all (--max-uploads-per-person of the "
        "aggregator); submit again "
        "when jobs have ended, or copy the data to the hosts and give --no-upload"
    )
    here.upload(b"1")  # a file that is here is no new one
    here.upload(b"3", BOB)
    here.store.keep_inputs("job", needed | {make_ref(b"3").sha256})
    with pytest.raises(
        CapReached,
        match=r"uploads: 1 more file and 3 that jobs need, expected at most 3 in all \(--max-uploads of",
    ):
        here.upload(b"4", BOB)
    assert here.reached == [Cap.UPLOADS_PER_PERSON, Cap.UPLOADS]
    here.upload(b"layout", WORKER)  # files of workers have caps of their own


def test_an_upload_counts_with_its_declared_size_while_it_is_under_way(tmp_path: Path) -> None:
    here = Aggregator(tmp_path, upload_gb=3, upload_gb_per_person=2)
    with here.uploads.reserve(large("first", 3 * GB // 2), ANN):
        with pytest.raises(CapReached) as caught:
            here.uploads.check([large("second", GB)], ANN)
        assert str(caught.value) == (
            "person ann: 1.0 GB more and 1.5 GB that jobs need, expected at most 2 GB in all "
            "(--max-upload-gb-per-person of the aggregator); submit again when jobs have ended, or copy the data to "
            "the hosts and give --no-upload"
        )
        with pytest.raises(CapReached, match=r"uploads: .*3 GB in all \(--max-upload-gb of"):
            here.uploads.check([large("third", 2 * GB)], BOB)
        with pytest.raises(CapReached), here.uploads.reserve(large("second", GB), ANN):
            raise AssertionError("there is no room for it")
    with here.uploads.reserve(large("second", 2 * GB), ANN):
        pass
    assert here.reached == [Cap.UPLOAD_BYTES_PER_PERSON, Cap.UPLOAD_BYTES, Cap.UPLOAD_BYTES_PER_PERSON]


def test_a_question_charges_nobody(tmp_path: Path) -> None:
    here = Aggregator(tmp_path, uploads_per_person=1)
    ref = make_ref(b"honest")
    for size in (1, 6, 100 * GB):
        here.uploads.check([FileRef(sha256=ref.sha256, size=size)], BOB)
        here.uploads.check([FileRef(sha256=ref.sha256, size=size)], ANN)
    with here.uploads.reserve(FileRef(sha256=ref.sha256, size=100 * GB), BOB):
        pass  # bytes of another file arrived
    assert not (tmp_path / "uploads.json").exists()
    here.upload(b"honest")
    here.start()
    here.store.keep_inputs("job", frozenset({ref.sha256}))
    with pytest.raises(CapReached, match="person ann"):
        here.upload(b"more")
    here.upload(b"bob's", BOB)


def test_what_workers_upload_has_caps_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aggregator.uploads.WORKER_FILES", 2)
    here = Aggregator(tmp_path, uploads=1)
    with pytest.raises(Refused, match=f"expected at most {MAX_TEXT_BYTES}"):
        here.uploads.check([large("x", MAX_TEXT_BYTES + 1)], WORKER)
    here.store.keep_inputs("job", frozenset({here.upload(b"layout", WORKER)}))
    for number in range(5):
        here.upload(b"%d" % number, WORKER, used_seconds=number)
    assert here.reached == [], "what no job keeps makes room, and what one keeps does not count"
    assert [here.has(b"%d" % number) for number in range(5)] == [False] * 3 + [True] * 2
    assert here.has(b"layout")
    here.upload(b"other", Caller(CallerKind.WORKER, "v"))
    here.upload(b"of a person")
    with (
        here.uploads.reserve(large("a", 1), WORKER),
        here.uploads.reserve(large("b", 1), WORKER),
        pytest.raises(CapReached, match="worker w: 3 files that no job keeps, expected at most 2"),
    ):
        here.uploads.check([large("c", 1)], WORKER)
    with pytest.raises(
        CapReached, match=f"worker w: .* bytes that no job keeps, expected at most {WORKER_BYTES}"
    ):
        monkeypatch.setattr("aggregator.uploads.WORKER_FILES", 100)
        here.uploads.check([large(str(number), MAX_TEXT_BYTES) for number in range(33)], WORKER)


def test_files_that_no_job_needs_make_room_the_longest_unused_first(tmp_path: Path) -> None:
    here = Aggregator(tmp_path, uploads_per_person=3)
    here.upload(b"new", used_seconds=3)
    here.upload(b"old", used_seconds=1)
    here.upload(b"bob's", BOB)
    here.store.keep_inputs("job", frozenset({here.upload(b"needed", used_seconds=0)}))
    here.upload(b"another")
    assert [here.has(each) for each in (b"new", b"old", b"needed", b"bob's")] == [True, False, True, True]
    with pytest.raises(CapReached), here.uploads.reserve(large("x", 101 * GB), ANN):
        raise AssertionError("there is no room for it")
    assert here.has(b"new"), "what can't fit pushes nothing out"


def test_the_files_of_a_job_are_admitted_together_or_not_at_all(tmp_path: Path) -> None:
    here = Aggregator(tmp_path, uploads_per_person=3)
    here.upload(b"old")
    with pytest.raises(CapReached):
        here.uploads.check([large(name, 1) for name in "abcd"], ANN)
    here.uploads.check([large(name, 1) for name in "abc"], ANN)
    assert here.has(b"old"), "a question pushes nothing out"
    for number, content in enumerate((b"a", b"b", b"c")):
        here.upload(content, used_seconds=1 + number)
    assert [here.has(each) for each in (b"old", b"a", b"b", b"c")] == [False, True, True, True]
    assert here.reached == [Cap.UPLOADS_PER_PERSON]


def test_a_file_counts_for_its_first_uploader_while_it_is_here(tmp_path: Path) -> None:
    here = Aggregator(tmp_path, uploads_per_person=1)
    here.store.keep_inputs("job", frozenset({here.upload(b"shared")}))
    here.upload(b"shared", BOB)
    here.upload(b"bob's", BOB, used_seconds=int(time.time()))
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


def test_a_record_that_can_not_be_written_leaves_the_file_to_a_later_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Aggregator(tmp_path, uploads_per_person=1)

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("aggregator.uploads.replace_file", full)
        with pytest.raises(NoRoom, match="No space left on device"):
            here.upload(b"1")
    assert not here.has(b"1")
    needed = frozenset({here.upload(b"1")})
    here.start()
    here.store.keep_inputs("job", needed)
    with pytest.raises(CapReached):
        here.upload(b"2")


def test_a_name_that_is_no_sha256_is_refused(tmp_path: Path) -> None:
    here = Aggregator(tmp_path)
    with pytest.raises(Refused, match="64 lower-case hexadecimal digits"):
        here.uploads.check([FileRef(sha256="../x", size=1)], ANN)
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
