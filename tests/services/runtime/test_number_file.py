"""Tests of the file with one number: full disks, writes cut short, files that people wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.errors import Failed, Refused, is_out_of_space
from services.printable import printable_path
from services.runtime.number_file import NumberFile
from tests.support.small_disk import small_disk


def number_file(path: Path) -> NumberFile:
    return NumberFile(path, 10**6, "a number")


def test_a_number_is_changed_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        file = number_file(disk.path / "number")
        file.write(3)
        disk.fill()
        for number in range(4, 20):
            file.write(number)
            assert number_file(disk.path / "number").read() == number
        with pytest.raises(Failed, match="not written: No space left on device") as failed:
            number_file(disk.path / "another").write(1)
        assert is_out_of_space(failed.value)
        assert not (disk.path / "another").exists()


@settings(max_examples=100, deadline=None)
@given(numbers=st.lists(st.integers(0, 10**6), min_size=2, max_size=5).map(sorted), cut=st.integers(0, 4095))
def test_a_write_cut_short_leaves_the_number_before(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], cut: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "number"
    path.unlink(missing_ok=True)
    file = number_file(path)
    for number in numbers[:-1]:
        file.write(number)
    before = path.read_bytes()
    file.write(numbers[-1])
    after = path.read_bytes()
    changed = [place for place in (0, 4096) if before[place : place + 4096] != after[place : place + 4096]]
    assert len(changed) <= 1
    for place in changed:
        path.write_bytes(
            before[:place] + after[place : place + cut] + b"\0" * (4096 - cut) + before[place + 4096 :]
        )
        assert file.read() in (numbers[-2], numbers[-1])
        file.write(numbers[-1])
        assert file.read() == numbers[-1]


def test_a_number_that_a_person_wrote_is_read_and_replaced(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("7\n")
    file = number_file(tmp_path / "number")
    assert file.read() == 7
    file.write(8)
    assert file.read() == 8


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    file = number_file(tmp_path / "number")
    file.write(7)
    (tmp_path / "number").write_bytes(b"\0" * 8192)
    with pytest.raises(Refused, match="damaged, both of its blocks are; put back a copy, or write"):
        file.read()


@pytest.mark.parametrize("content", [b"", b"x" * 5000, b"-1", b"1_0", b"9" * 5000, b"\x1b[31m"])
def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / ("long" * 50) / "number"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(Refused) as refused:
        number_file(path).read()
    text = str(refused.value)
    assert text.startswith(f"{printable_path(path)}: damaged, b") and text.isprintable()
    assert text.endswith(
        " found, expected a number from 0 to 1000000; put back a copy, or write one number into it: a number"
    )
