"""`tiermesh submit` uploads what the aggregator lacks of a job's inputs, once, and says why it can't."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import services.jobs.client
from cli.main import main
from cli.output import Output
from cli.uploads import upload_inputs
from protos.files_pb2 import FileRef
from services.caps import Cap, CapReached
from services.config.job_inputs import JobInput
from services.corpora.conversion import converted
from services.corpora.token_file import describe_token_file
from services.errors import Failed, Refused
from services.files.store import FileStore
from services.jobs.client import JobsClient
from services.jobs.input_files import InputFiles
from services.jobs.target import AggregatorTarget
from services.protocol.file_refs import MAX_FILE_BYTES, MAX_PIECE_BYTES, make_ref
from services.timeouts import Timeouts
from services.transport.security import Security
from tests.support.cluster.bits import gpt_config, write_config, write_corpus
from tests.support.fake_aggregator import FakeAggregator, serving

CONTENT = os.urandom(2 * MAX_PIECE_BYTES + 5)
REF = make_ref(CONTENT)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeAggregator]:
    fake = FakeAggregator()
    fake.store = FileStore(tmp_path / "aggregator")
    with serving(fake):
        yield fake


@pytest.fixture
def large(tmp_path: Path) -> JobInput:
    """Return an input of three pieces."""
    path = tmp_path / "large.txt"
    path.write_bytes(CONTENT)
    return JobInput("training_config.data_path", str(path), {"": REF.sha256})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services.jobs.client, "_RETRY_SECONDS", 0.01)


def upload(fake: FakeAggregator, *inputs: JobInput, timeout_seconds: float = 20.0) -> None:
    """Upload inputs, as `submit` does."""
    upload_files(fake, InputFiles(inputs), timeout_seconds)


def upload_files(fake: FakeAggregator, files: InputFiles, timeout_seconds: float = 20.0) -> None:
    async def run() -> None:
        async with JobsClient(AggregatorTarget(fake.address, Security(), timeout_seconds)) as client:
            await upload_inputs(client, files, Output())

    asyncio.run(run())


def stored(fake: FakeAggregator) -> FileStore:
    assert fake.store is not None
    return fake.store


def fail_first(fake: FakeAggregator, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> list[int]:
    """Let the first uploads end with these errors; return where each upload begins."""
    store, left, offsets = stored(fake), list(errors), []
    begin = store.begin

    def begin_later(ref: FileRef, offset: int, writer: str) -> Any:
        offsets.append(offset)
        if left:
            raise left.pop(0)
        return begin(ref, offset, writer)

    monkeypatch.setattr(store, "begin", begin_later)
    return offsets


def test_submit_sends_each_file_once(
    fake: FakeAggregator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_corpus(tmp_path)
    job = write_config(tmp_path, gpt_config(corpus))
    for number in (1, 2):
        assert main(["submit", str(job), "--aggregator", fake.address]) == 0
        printed = capsys.readouterr()
        assert printed.out == f"job-{number}\n"
        assert ("uploaded 0.0 MB" in printed.err) == (number == 1)
    assert stored(fake).has([make_ref(corpus.read_bytes())])
    assert len(fake.submitted) == 2


def test_no_upload_sends_nothing(fake: FakeAggregator, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path)
    job = write_config(tmp_path, gpt_config(corpus))
    assert main(["submit", str(job), "--aggregator", fake.address, "--no-upload"]) == 0
    assert not stored(fake).has([make_ref(corpus.read_bytes())])
    assert len(fake.submitted) == 1


def test_a_cap_ends_the_command_before_the_job_is_queued(
    fake: FakeAggregator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_config(tmp_path, gpt_config(write_corpus(tmp_path)))
    text = "person ann: jobs need 2 files, expected at most 2 (--max-uploads-per-person of the aggregator)"
    fail_first(fake, monkeypatch, CapReached(Cap.UPLOADS_PER_PERSON, text))
    assert main(["submit", str(job), "--aggregator", fake.address]) == 75
    assert capsys.readouterr().err.splitlines()[-1] == f"tiermesh: aggregator {fake.address}: {text}"
    assert fake.submitted == []


def test_an_upload_continues_after_breaks(
    fake: FakeAggregator, large: JobInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = stored(fake).begin(REF, 0, "127.0.0.1")
    assert former is not None
    with former:
        former.write(CONTENT[:MAX_PIECE_BYTES])
    offsets = fail_first(fake, monkeypatch, Failed("the aggregator stops"), Failed("it starts"))
    upload(fake, large)
    assert stored(fake).has([REF])
    assert offsets == [MAX_PIECE_BYTES] * 3


def test_an_upload_does_not_wait_for_another_person_s_upload_of_the_same_file(
    fake: FakeAggregator, large: JobInput
) -> None:
    other = stored(fake).begin(REF, 0, "another")
    assert other is not None
    with other:
        upload(fake, large)
        assert stored(fake).has([REF]) and not other.write(CONTENT[:1])


def test_an_upload_that_gets_no_further_fails(
    fake: FakeAggregator, large: JobInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services.jobs.client, "STANDARD_TIMEOUTS", Timeouts.from_heartbeat(0.005))
    fail_first(fake, monkeypatch, *[Failed("the disk is away")] * 1000)
    with pytest.raises(Failed, match=r"; it got no further for .* s, repeat the command to go on"):
        upload(fake, large)


def test_nobody_at_the_address_is_told_at_once(large: JobInput) -> None:
    nobody = FakeAggregator()
    nobody.address = "localhost:1"
    with pytest.raises(Failed, match="nothing listens at localhost:1: "):
        upload(nobody, large, timeout_seconds=2.0)


def test_a_file_that_changes_while_it_is_submitted_is_refused(fake: FakeAggregator, large: JobInput) -> None:
    files = InputFiles([large])
    Path(large.path).write_bytes(bytes(len(CONTENT)))
    with pytest.raises(
        Refused, match=r"data_path: .*large.txt has changed while it was submitted; submit it again"
    ):
        upload_files(fake, files)
    assert not list((stored(fake).path_of("x").parent).iterdir()), "what arrived is not kept"


def test_a_damaged_conversion_is_made_again_by_the_next_submit(
    fake: FakeAggregator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERMESH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "ids.csv").write_text("3\n4\n5\n")
    sidecar = describe_token_file(tmp_path / "ids.csv", "data_path")
    wanted = JobInput("data_path", str(tmp_path / "ids.csv"), {"": sidecar.sha256}, sidecar.identity)
    binary = converted(tmp_path / "ids.csv", "data_path")
    time_ns = binary.stat().st_mtime_ns
    binary.write_bytes(bytes(12))
    os.utime(binary, ns=(time_ns, time_ns))
    with pytest.raises(Refused, match="has changed while it was submitted; submit it again"):
        upload(fake, wanted)
    upload(fake, wanted)
    assert stored(fake).has([make_ref(b"\3\0\0\0\4\0\0\0\5\0\0\0")])


def test_what_can_not_be_uploaded_is_refused_before(tmp_path: Path, large: JobInput) -> None:
    Path(large.path).unlink()
    with pytest.raises(Refused, match="no such file"):
        InputFiles([large])
    os.mkfifo(large.path)
    with pytest.raises(Refused, match="is a pipe, expected a regular file"):
        InputFiles([large])
    huge = tmp_path / "huge.txt"
    huge.touch()
    os.truncate(huge, MAX_FILE_BYTES + 1)
    with pytest.raises(Refused, match=f"expected at most {MAX_FILE_BYTES} for an upload; split it, or copy"):
        InputFiles([JobInput("training_config.data_path", str(huge), {"": REF.sha256})])
