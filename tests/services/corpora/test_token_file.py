"""Token files: opened by their sidecar alone, verified at first use, and refused in one line if anything is odd."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.corpora import conversion, description, token_file
from services.corpora import sidecar as sidecar_module
from services.corpora.block_digest import BLOCK_BYTES
from services.corpora.new_file import new_file
from services.corpora.reading_progress import watch_reading
from services.corpora.sidecar import load_sidecar, parse_sidecar, sidecar_path
from services.corpora.token_file import TokenFile, describe_token_file, is_token_file, refuse_ids_beyond
from services.errors import Refused
from services.printable import LINE_CHARACTERS, printable_path

FIELD = "training_config.data_path"
LONG = np.arange(3 * BLOCK_BYTES // 2 + 5) * 7 % 50_000
"""Ids of three blocks and a few bytes, as uint16."""


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(Refused) as refused:
        call()
    text = str(refused.value)
    assert text.isprintable() and len(text) <= LINE_CHARACTERS
    return text


def write(path: Path, ids: npt.ArrayLike, dtype: str = "<u2") -> Path:
    array = np.asarray(ids).astype(dtype)
    if path.suffix == ".npy":
        np.save(path, array)
    else:
        path.write_bytes(array.tobytes())
    return path


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("ids.bin", "<u2"), ("ids.u16.bin", "<u2"), ("ids.u32.bin", "<u4")]
    + [("ids.npy", dtype) for dtype in ("<u2", "<u4", "<i4", "<i8")],
)
def test_any_window_of_any_format(tmp_path: Path, name: str, dtype: str) -> None:
    path = write(tmp_path / name, LONG, dtype)
    with_windows = TokenFile.open(path, FIELD)
    assert (with_windows.count, with_windows.largest_id) == (LONG.size, LONG.max())
    for start, count in ((0, 10), (BLOCK_BYTES // 2 - 40, 100), (LONG.size - 3, 3), (0, LONG.size), (5, 0)):
        ids = with_windows.read(start, count)
        assert ids.dtype == np.uint32
        np.testing.assert_array_equal(ids, LONG[start : start + count])
    for start, count in ((-1, 1), (0, LONG.size + 1), (LONG.size, 1), (3, -1)):
        with pytest.raises(ValueError):
            with_windows.read(start, count)


@pytest.mark.parametrize(("magic", "version", "dtype"), [(20240520, 1, "<u2"), (20240801, 7, "<u4")])
def test_files_of_llm_c(tmp_path: Path, magic: int, version: int, dtype: str) -> None:
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, 500
    path = tmp_path / "fineweb.bin"
    path.write_bytes(header.tobytes() + np.arange(500).astype(dtype).tobytes())
    assert TokenFile.open(path, FIELD).read(490, 10).tolist() == list(range(490, 500))
    os.truncate(path, 1500)
    sidecar_path(path).unlink()
    assert "expected" in refusal(lambda: TokenFile.open(path, FIELD))


def test_opening_reads_the_sidecar_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "ids.bin", LONG)
    identity = describe_token_file(path, FIELD).identity
    monkeypatch.setattr(token_file, "describe", None)  # a pass over the file would fail
    monkeypatch.setattr(TokenFile, "verify", None)
    assert TokenFile.open(path, FIELD).identity == identity
    assert TokenFile.open(path, FIELD, identity).count == LONG.size


def test_yaml_and_csv_are_converted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    path = tmp_path / "ids.yaml"
    path.write_text("{data_length: 3, tokenizer_vocab_size: 9, tokens: [5, 0, 8]}\n")
    found = TokenFile.open(path, FIELD)
    assert (found.read(0, 3).tolist(), found.tokenizer_vocab_size) == ([5, 0, 8], 9)
    assert found.path.parent == cache / "tokens"
    same = tmp_path / "same.csv"
    same.write_text("5 0 8\n")
    assert TokenFile.open(same, FIELD).identity == found.identity
    monkeypatch.setattr("services.corpora.conversion.IdText", None)  # another conversion would fail
    assert TokenFile.open(path, FIELD).identity == found.identity
    assert describe_token_file(path, FIELD).identity == found.identity
    assert list(tmp_path.glob("*.sidecar.json")) == []


def test_conversions_unused_for_the_longest_time_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "CACHED_BYTES", 20)  # two conversions of 8 bytes
    paths = [tmp_path / f"{number}.csv" for number in range(3)]
    found = []
    for number, path in enumerate(paths):
        path.write_text(f"{number} 5\n")
        found.append(TokenFile.open(path, FIELD))
        os.utime(sidecar_path(found[-1].path), (number, number))
        if number == 1:
            TokenFile.open(paths[0], FIELD)  # now 1 is unused for the longest time
    assert [each.path.exists() for each in found] == [True, False, True]
    assert found[1].read(0, 2).tolist() == [1, 5]
    assert len(list(found[0].path.parent.iterdir())) == 4


def test_a_damaged_conversion_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "ids.csv"
    path.write_text("5 0 8\n")
    binary = TokenFile.open(path, FIELD).path
    os.truncate(binary, 4)
    assert TokenFile.open(path, FIELD).read(0, 3).tolist() == [5, 0, 8]
    sidecar_path(binary).write_text("{")
    assert TokenFile.open(path, FIELD).read(0, 3).tolist() == [5, 0, 8]


def test_a_sidecar_goes_to_the_cache_if_the_folder_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    def new_file_elsewhere(name: Path) -> AbstractContextManager[BinaryIO]:
        if name.parent == tmp_path:
            raise Refused("read-only")
        return new_file(name)

    monkeypatch.setattr(sidecar_module, "new_file", new_file_elsewhere)
    path = write(tmp_path / "ids.bin", LONG)
    sidecar = describe_token_file(path, FIELD)
    assert not sidecar_path(path).exists() and len(list((cache / "sidecars").iterdir())) == 1
    assert load_sidecar(path) == sidecar


def change_a_block(path: Path, *, keep_time: bool = False) -> None:
    """Change a byte of block 1 in place."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(BLOCK_BYTES + 10)
        file.write(b"\xff")
    os.utime(path, ns=(0, status.st_mtime_ns if keep_time else 1))


def test_a_changed_block_is_found_when_the_file_is_opened(tmp_path: Path) -> None:
    path = write(tmp_path / "ids.bin", LONG)
    identity = describe_token_file(path, FIELD).identity
    wanted = load_sidecar(path)
    assert wanted is not None
    change_a_block(path)
    found = hashlib.sha256(path.read_bytes()[BLOCK_BYTES : 2 * BLOCK_BYTES]).hexdigest()
    for look in (describe_token_file, TokenFile.open, partial(TokenFile.open, identity=identity)):
        text = refusal(partial(look, path, FIELD))
        assert text == (
            f"{FIELD}: {printable_path(path)}: block 1 (ids 524288 to 1048575) has sha256 {found[:12]}..., its sidecar "
            f"says {wanted.block_hash(1)[:12]}...; copy the file again, or remove its sidecar and submit again"
        )


def test_a_change_that_keeps_the_time_is_found_at_the_use_of_the_block(tmp_path: Path) -> None:
    path = write(tmp_path / "ids.bin", LONG)
    identity = describe_token_file(path, FIELD).identity
    change_a_block(path, keep_time=True)
    found = TokenFile.open(path, FIELD, identity)
    assert found.read(0, BLOCK_BYTES // 2).size
    for _ in range(2):
        assert "block 1 (ids 524288 to 1048575)" in refusal(lambda: found.read(BLOCK_BYTES // 2, 1))


def test_a_file_that_replaces_another_is_verified_whatever_its_time(tmp_path: Path) -> None:
    path = write(tmp_path / "ids.bin", LONG)
    identity = describe_token_file(path, FIELD).identity
    other = write(tmp_path / "other.bin", LONG[::-1])
    time_ns = path.stat().st_mtime_ns
    os.utime(other, ns=(time_ns, time_ns))
    other.replace(path)
    assert "block 0" in refusal(lambda: TokenFile.open(path, FIELD, identity))


def test_a_longest_line_about_a_changed_block(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*(50 * "x" for _ in range(4)))
    folder.mkdir(parents=True)
    path = write(folder / "ids.bin", LONG)
    identity = describe_token_file(path, FIELD).identity
    change_a_block(path)
    text = refusal(lambda: TokenFile.open(path, f"{FIELD}[511]", identity))
    assert text.endswith("or remove its sidecar and submit again")


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of each block that is verified."""
    blocks: list[int] = []
    verify = TokenFile._verify

    def note(self: TokenFile, block: int) -> None:
        blocks.append(block)
        verify(self, block)

    monkeypatch.setattr(TokenFile, "_verify", note)
    return blocks


def test_a_copy_is_verified_once(tmp_path: Path, verified: list[int]) -> None:
    path = write(tmp_path / "ids.bin", LONG)
    identity = describe_token_file(path, FIELD).identity
    os.utime(path, ns=(0, 0))
    before = sidecar_path(path).read_bytes()
    for blocks in ([0, 1, 2, 3], []):
        TokenFile.open(path, FIELD, identity).close()
        assert sorted(verified) == blocks
        verified.clear()
    assert sidecar_path(path).read_bytes() == before, "only a person's command writes it"


def test_a_file_is_verified_in_pieces_that_a_watcher_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verified: list[int]
) -> None:
    monkeypatch.setattr(token_file, "_PIECE_BLOCKS", 2)
    path = write(tmp_path / "ids.bin", LONG)
    identity = describe_token_file(path, FIELD).identity
    os.utime(path, ns=(0, 0))
    seen: list[tuple[int, int]] = []

    def watch(file: Path, read_bytes: int, size_bytes: int) -> None:
        seen.append((read_bytes, size_bytes))

    with watch_reading(watch):
        TokenFile.open(path, FIELD, identity).close()
    size_bytes = path.stat().st_size
    assert seen == [(2 * BLOCK_BYTES, size_bytes), (size_bytes, size_bytes)]
    assert sorted(verified) == [0, 1, 2, 3]


def test_a_change_after_the_first_use_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "ids.bin", LONG)
    found = TokenFile.open(path, FIELD)
    assert found.read(0, 5).size
    with path.open("r+b") as file:
        file.write(b"\xff\xff")
    os.utime(path, ns=(0, 0))
    assert "block 0 (ids 0 to 524287) has sha256" in refusal(lambda: found.read(0, 5))


def test_a_file_that_gets_shorter_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "ids.bin", LONG)
    found = TokenFile.open(path, FIELD)
    os.truncate(path, BLOCK_BYTES + 100)
    assert "ends at byte 1048676" in refusal(lambda: found.read(BLOCK_BYTES // 2, 100))
    assert "its sidecar says 3145738" in refusal(lambda: TokenFile.open(path, FIELD))
    assert "its sidecar says 3145738" in refusal(lambda: TokenFile.open(path, FIELD, found.identity))


def test_a_file_that_changes_while_it_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "ids.bin", LONG)
    read_block = description._read_block

    def touch_and_read(file: BinaryIO, place: str) -> bytes:
        os.utime(path, ns=(0, 0))
        return read_block(file, place)

    monkeypatch.setattr(description, "_read_block", touch_and_read)
    assert "changed while it was read" in refusal(lambda: describe_token_file(path, FIELD))


def test_the_largest_id_has_its_first_position(tmp_path: Path) -> None:
    ids = np.zeros(LONG.size)
    ids[-2:] = 9
    sidecar = describe_token_file(write(tmp_path / "ids.u16.bin", ids), FIELD)
    assert (sidecar.largest_id, sidecar.largest_id_position) == (9, LONG.size - 2)


def test_a_touched_file_keeps_its_identity(tmp_path: Path) -> None:
    path = write(tmp_path / "ids.bin", LONG)
    first = describe_token_file(path, FIELD)
    os.utime(path, ns=(0, 0))
    assert describe_token_file(path, FIELD).identity == first.identity
    sidecar = load_sidecar(path)
    assert sidecar is not None and sidecar.fits(path.stat())


def test_another_identity_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "ids.bin", LONG)
    assert "the job expects 0000000000000000..." in refusal(lambda: TokenFile.open(path, FIELD, "0" * 64))


def test_a_sidecar_may_not_lie_about_the_largest_id(tmp_path: Path) -> None:
    path = write(tmp_path / "ids.bin", LONG)
    record = describe_token_file(path, FIELD).model_dump_json().encode()
    lie = parse_sidecar(
        json.dumps({**json.loads(record), "largest_id": 6, "largest_id_position": 0}).encode(), ""
    )
    sidecar_path(path).write_text(lie.model_dump_json())
    text = refusal(lambda: TokenFile.open(path, FIELD, lie.identity).read(0, 1))
    assert "id 7 at position 1, its sidecar says at most 6" in text


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("ids.bin", b"", "has no ids"),
        ("ids.bin", b"12345", "5 bytes of ids, expected a multiple of 2 for uint16"),
        ("ids.u32.bin", b"123456", "6 bytes of ids, expected a multiple of 4 for uint32"),
        ("ids.bin", np.arange(100, dtype="<u4").tobytes(), "looks like ids of 32 bits"),
        ("ids.bin", np.arange(100, dtype="<i8").tobytes(), "looks like ids of 32 bits"),
        ("ids.bin", b"PK\x03\x04" + bytes(100), "is a zip archive or a PyTorch file"),
        ("ids.bin", b"\x93NUMPY\x01\x00", "is a numpy file"),
        ("ids.npy", b"plain text", "is no .npy file"),
        ("ids.npy", b"\x93NUMPY\x01\x00\x10\x00" + 16 * b"(", "its header is no array's"),
        (
            "ids.npy",
            b"\x93NUMPY\x01\x00\x39\x00{'descr': '<u2', 'fortran_order': False, 'shape': (1,), }\n12",
            "its header is no array's",
        ),
        ("ids.csv", b"5 -6 7", "line 1: '-6' found"),
    ],
)
def test_foreign_files(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    text = refusal(lambda: describe_token_file(path, FIELD))
    assert text.startswith(f"{FIELD}: {printable_path(path)}") and expected in text
    assert not sidecar_path(path).exists()


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros((3, 4), "<u2"), "an array of shape (3, 4)"),
        (np.zeros(4, ">u2"), "an array of >u2"),
        (np.zeros(4, "<f4"), "an array of <f4"),
        (np.zeros(0, "<u2"), "has no ids"),
        (np.array([5, -2, 7]), "id -2 at position 1"),
        (np.array([5, 2**32]), "id 4294967296 at position 1"),
    ],
)
def test_arrays_that_are_no_ids(tmp_path: Path, array: npt.NDArray[np.generic], expected: str) -> None:
    np.save(tmp_path / "ids.npy", array)
    assert expected in refusal(lambda: describe_token_file(tmp_path / "ids.npy", FIELD))


def test_a_cut_off_array(tmp_path: Path) -> None:
    path = write(tmp_path / "ids.npy", LONG)
    os.truncate(path, 1000)
    assert f"for the {LONG.size} ids of its header" in refusal(lambda: describe_token_file(path, FIELD))


@pytest.mark.parametrize("name", ["ids.bin", "ids.npy", "ids.yaml", "ids.csv"])
def test_a_pipe_or_a_folder(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert "is a pipe" in refusal(lambda: TokenFile.open(tmp_path / name, FIELD))
    (tmp_path / "folder" / name).mkdir(parents=True)
    assert "is a folder" in refusal(lambda: TokenFile.open(tmp_path / "folder" / name, FIELD))
    assert "no such file" in refusal(lambda: TokenFile.open(tmp_path / "none" / name, FIELD))


def test_ids_beyond_the_vocabulary(tmp_path: Path) -> None:
    sidecar = describe_token_file(write(tmp_path / "ids.bin", [5, 9, 3, 9]), FIELD)
    refuse_ids_beyond(sidecar, 10, FIELD, "ids.bin", "transformer_config.vocab_size")
    text = refusal(lambda: refuse_ids_beyond(sidecar, 9, FIELD, "ids.bin", "transformer_config.vocab_size"))
    assert "id 9 at position 1, expected ids below 9 (transformer_config.vocab_size)" in text


@given(st.data())
def test_any_sidecar_is_refused_or_consistent(data: st.DataObject) -> None:
    fields = {
        "dtype": st.sampled_from(["uint16", "uint32", "int64", "int8"]),
        "offset_bytes": st.integers(-1, 100),
        "count": st.integers(-1, 2**41),
        "largest_id": st.integers(-1, 2**33),
        "largest_id_position": st.integers(-1, 5),
        "file_bytes": st.integers(-1, 2**41),
        "modified_ns": st.integers(),
        "sha256": st.text("0123456789abcdefX", min_size=64, max_size=64),
        "block_sha256": st.text("0123456789abcdef", max_size=200),
    }
    record = {name: data.draw(values) for name, values in fields.items() if data.draw(st.integers(0, 20))}
    text = refusal(lambda: parse_sidecar(json.dumps(record).encode(), "ids.bin.sidecar.json"))
    assert text.startswith("ids.bin.sidecar.json: is no sidecar")


@pytest.mark.parametrize(
    "change",
    [
        {"count": 5},
        {"dtype": "uint32"},
        {"offset_bytes": 1, "file_bytes": 7},
        {"largest_id_position": 3},
        {"block_sha256": ""},
        {"block_sha256": "0" * 128},
        {"format": 2},
        {"more": 1},
    ],
)
def test_a_sidecar_that_contradicts_itself(change: dict[str, object]) -> None:
    record = {
        "dtype": "uint16", "offset_bytes": 0, "count": 3, "largest_id": 8, "largest_id_position": 2, "file_bytes": 6,
        "modified_ns": 0, "sha256": "0" * 64, "block_sha256": "0" * 64,
    }  # fmt: skip
    assert parse_sidecar(json.dumps(record).encode(), "").count == 3
    assert "is no sidecar" in refusal(
        lambda: parse_sidecar(json.dumps({**record, **change}).encode(), "ids.bin")
    )


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 4000, b'{"format": 2}'])
def test_a_file_that_is_no_sidecar(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path / "ids.bin", LONG)
    sidecar_path(path).write_bytes(content)
    assert "is no sidecar of a token file" in refusal(lambda: describe_token_file(path, FIELD))


def test_a_pipe_in_place_of_a_sidecar(tmp_path: Path) -> None:
    path = write(tmp_path / "ids.bin", [5, 9, 3])
    os.mkfifo(sidecar_path(path))
    text = refusal(lambda: describe_token_file(path, FIELD))
    assert text.endswith(
        "sidecar.json: is a pipe, expected a regular file; remove it, and the next submit makes another"
    )


def test_the_sidecar_of_another_file(tmp_path: Path) -> None:
    one, other = write(tmp_path / "one.bin", LONG), write(tmp_path / "other.bin", LONG[::-1])
    describe_token_file(one, FIELD)
    sidecar_path(one).rename(sidecar_path(other))
    assert "its sidecar says" in refusal(lambda: describe_token_file(other, FIELD))


@pytest.mark.parametrize(
    ("name", "expected"), [("a.YAML", True), ("a.bin", True), ("a.txt", False), ("a", False)]
)
def test_token_files_are_known_by_their_suffix(name: str, expected: bool) -> None:
    assert is_token_file(Path(name)) is expected
