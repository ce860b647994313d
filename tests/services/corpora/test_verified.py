"""Records of verified files: what makes a file another one, and what a missing or damaged record costs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.corpora import verified
from services.corpora.sidecar import TokenSidecar, load_sidecar
from services.corpora.token_file import TokenFile, describe_token_file
from services.corpora.verified import is_unchanged, note_verified


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    path = tmp_path / "ids.bin"
    path.write_bytes(bytes(1000))
    return path


@pytest.fixture
def sidecar(ids: Path) -> TokenSidecar:
    """Return the description of the file, as of a copy: without its time."""
    return describe_token_file(ids, "").model_copy(update={"modified_ns": 0})


def records(cache: Path) -> list[Path]:
    return [*(cache / "verified").iterdir()]


def test_the_sidecar_stands_for_a_record(ids: Path, cache: Path) -> None:
    described = describe_token_file(ids, "")
    (record,) = records(cache)
    record.unlink()
    assert is_unchanged(ids, described, ids.stat())
    os.utime(ids, ns=(0, 1))
    assert not is_unchanged(ids, described, ids.stat())


def test_another_time_or_inode_is_another_file(ids: Path, sidecar: TokenSidecar) -> None:
    status = ids.stat()
    assert is_unchanged(ids, sidecar, status)
    os.utime(ids, ns=(0, status.st_mtime_ns + 1))
    assert not is_unchanged(ids, sidecar, ids.stat())
    os.utime(ids, ns=(0, status.st_mtime_ns))
    assert is_unchanged(ids, sidecar, ids.stat())
    other = ids.with_name("other.bin")
    other.write_bytes(ids.read_bytes())
    os.utime(other, ns=(0, status.st_mtime_ns))
    other.replace(ids)
    assert not is_unchanged(ids, sidecar, ids.stat())


def test_a_record_of_other_ids_says_nothing(ids: Path, sidecar: TokenSidecar) -> None:
    note_verified(ids, "0" * 64, ids.stat())
    assert not is_unchanged(ids, sidecar, ids.stat())


def test_links_to_a_file_share_its_record(ids: Path, sidecar: TokenSidecar, cache: Path) -> None:
    link = ids.with_name("link.bin")
    link.symlink_to(ids)
    assert is_unchanged(link, sidecar, link.stat())
    note_verified(link, sidecar.identity, link.stat())
    assert len(records(cache)) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"{}", b"0" * 5000])
def test_a_damaged_record_is_none_and_is_written_again(
    ids: Path, sidecar: TokenSidecar, cache: Path, content: bytes
) -> None:
    (record,) = records(cache)
    record.write_bytes(content)
    assert not is_unchanged(ids, sidecar, ids.stat())
    note_verified(ids, sidecar.identity, ids.stat())
    assert is_unchanged(ids, sidecar, ids.stat())


def test_a_file_opens_where_no_record_can_be_written(
    ids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    identity = describe_token_file(ids, "").identity
    os.utime(ids, ns=(0, 1))
    (tmp_path / "file").touch()
    monkeypatch.setenv("TIERMESH_CACHE", str(tmp_path / "file"))
    TokenFile.open(ids, "", identity).close()
    (line,) = caplog.messages
    assert "was verified, but that can't be recorded: TIERMESH_CACHE: " in line


def test_the_oldest_records_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(verified, "MAX_RECORDS", 2)
    for number in range(4):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(bytes(10))
        describe_token_file(path, "")
        for age, record in enumerate(sorted(records(cache), key=lambda each: each.stat().st_mtime_ns)):
            os.utime(record, ns=(0, age))
    assert len(records(cache)) == 2
    last = tmp_path / "3.bin"
    sidecar = load_sidecar(last)
    assert sidecar is not None
    assert is_unchanged(last, sidecar.model_copy(update={"modified_ns": 0}), last.stat())
