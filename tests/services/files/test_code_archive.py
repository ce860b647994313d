"""The archive of a folder of code: one for each set of files, and nothing else is read as one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.errors import Refused
from services.files import code_archive
from services.files.code_archive import MOST_CODE_FILES, is_left_out, pack_code, unpack_code

PART = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(
    lambda text: text.isprintable() and not is_left_out(text) and not set(text) & set("/\\")
)
NAME = st.lists(PART, min_size=1, max_size=3).map("/".join)
FILES = st.dictionaries(NAME, st.binary(max_size=64), min_size=1, max_size=6).filter(
    lambda files: not any(one.startswith(f"{other}/") for one in files for other in files)
)
GOOD = pack_code({"a.py": b"x = 1\n", "b/c.txt": b""})


@given(FILES)
def test_files_come_back_and_their_order_does_not_count(files: dict[str, bytes]) -> None:
    archive = pack_code(files)
    assert unpack_code(archive) == files
    assert pack_code(dict(reversed(files.items()))) == archive


@given(FILES, st.data())
def test_another_archive_is_refused_or_has_other_files(files: dict[str, bytes], data: st.DataObject) -> None:
    """So the SHA-256 of an archive names its files."""
    archive = pack_code(files)
    place = data.draw(st.integers(0, len(archive) - 1))
    changed = bytearray(archive)
    changed[place] ^= data.draw(st.integers(1, 255))
    for other in (bytes(changed), archive[:place], archive + b"x"):
        try:
            found = unpack_code(other)
        except Refused:
            continue
        assert found != files and pack_code(found) == other


@given(st.binary(max_size=200))
def test_any_bytes_are_no_archive(content: bytes) -> None:
    with pytest.raises(Refused, match=r"the archive of code|expected a|has no files"):
        unpack_code(content)


def make(listed: object, contents: bytes = b"", version: object = 1) -> bytes:
    header = json.dumps({"code": version, "files": listed}, separators=(",", ":"))
    return header.encode() + b"\n" + contents


@pytest.mark.parametrize(
    "name",
    [
        *(
            "../x.py",
            "a/../x.py",
            "/etc/passwd",
            "a//b",
            "a/",
            "",
            ".",
            ".git/config",
            "a/.x",
            "__pycache__/m.pyc",
        ),
        *("a\\b", "a\nb", "a\x00b", "a\x1b[2J", "\ud800", "x" * 201),
    ],
)
def test_a_name_that_is_none_below_the_folder_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="rename the file"):
        unpack_code(make([[name, 0]]))
    with pytest.raises(Refused, match="rename the file"):
        pack_code({name: b""})


@pytest.mark.parametrize(
    "archive",
    [
        b"",
        b"\n",
        b"[]\n",
        b"{}\n",
        b'{"code":1,"files":7}\n',
        b'{"code":1,"files":[7]}\n',
        make([["a.py", -1]]),
        make([["a.py", True]], b"x"),
        make([["a.py", 1.0]], b"x"),
        make([[7, 1]], b"x"),
        make([["a.py", 1]], b"x", version=2),
        make([["a.py", 1]], b"x", version=True),
        make([["a.py", 2]], b"x"),
        make([["a.py", 1]], b"xy"),
        make([["a.py", 10**18]], b"x"),
        make([["b.py", 0], ["a.py", 0]]),
        make([["a.py", 0], ["a.py", 0]]),
        b" " + GOOD,
        b"[" * 5000 + b"\n",
        b"x" * (2 << 20),
    ],
    ids=range(20),
)
def test_an_archive_that_lies_is_refused(archive: bytes) -> None:
    with pytest.raises(Refused, match="the archive of code"):
        unpack_code(archive)


def test_a_file_that_is_a_folder_too_is_refused() -> None:
    with pytest.raises(Refused, match="a: is a file and a folder"):
        unpack_code(make([["a", 0], ["a/b.txt", 0]]))


def test_sizes_and_numbers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="has no files"):
        pack_code({})
    many = {f"m{number}.py": b"" for number in range(MOST_CODE_FILES)}
    assert unpack_code(pack_code(many)) == many
    with pytest.raises(Refused, match="more than 1000 files"):
        pack_code(many | {"one.py": b""})
    monkeypatch.setattr(code_archive, "MOST_CODE_BYTES", 3)
    with pytest.raises(Refused, match="has 4 bytes, expected at most 3"):
        pack_code({"a.py": b"12", "b.py": b"34"})


def test_the_format_stays() -> None:
    """Else a job could not be continued after an upgrade."""
    assert GOOD == b'{"code":1,"files":[["a.py",6],["b/c.txt",0]]}\nx = 1\n'
