"""Every clone computes CRC-32C, for any start, length and memory of the content."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native import crc32c
from native.library import C

ALL_BYTES = 40_000
RANDOM = np.random.Generator(np.random.Philox(0)).integers(0, 256, ALL_BYTES, np.uint8)
LENGTHS = st.integers(0, 700) | st.integers(0, ALL_BYTES - 64)


class Checksum(ctypes.Structure):
    _fields_ = (
        ("clone", ctypes.c_char_p),
        ("update", ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t)),
    )


def clones() -> Iterator[tuple[str, Callable[[int, int, int], int]]]:
    find, index = C.tiermesh_find_checksum, 0
    find.argtypes, find.restype = (ctypes.c_size_t,), ctypes.POINTER(Checksum)
    while found := find(index):
        yield found.contents.clone.decode(), found.contents.update
        index += 1


CLONES = dict(clones())


@pytest.mark.parametrize("clone", CLONES)
@settings(deadline=None, max_examples=150)
@given(start=st.integers(0, 63), length=LENGTHS, cut=st.floats(0, 1))
def test_every_clone_computes_crc32c_of_any_bytes_in_any_two_parts(
    clone: str, start: int, length: int, cut: float
) -> None:
    update, part = CLONES[clone], RANDOM[start : start + length]
    first = round(cut * length)
    place = part.ctypes.data
    state = update(update(0xFFFFFFFF, place, first), place + first, length - first)
    assert state ^ 0xFFFFFFFF == google_crc32c.value(part.tobytes())


def test_the_values_of_rfc_3720() -> None:
    assert crc32c.value(bytes(32)) == 0x8A9136AA
    assert crc32c.value(b"\xff" * 32) == 0x62A8AB43
    assert crc32c.value(bytes(range(32))) == 0x46DD794E
    assert crc32c.value(b"") == 0


def test_any_contiguous_bytes_are_accepted() -> None:
    expected = google_crc32c.value(RANDOM.tobytes())
    read_only = RANDOM.copy()
    read_only.flags.writeable = False
    for content in (RANDOM, read_only, RANDOM.tobytes(), memoryview(RANDOM.tobytes()), bytearray(RANDOM)):
        assert crc32c.value(content) == expected
    assert crc32c.value(memoryview(RANDOM.view(np.float32)[:-100])) == google_crc32c.value(
        RANDOM[:-400].tobytes()
    )
    assert crc32c.value(np.zeros(0, np.uint8)) == crc32c.value(memoryview(b"")) == 0
    with pytest.raises(ValueError, match="contiguous"):
        crc32c.value(RANDOM[::2])


def test_flipped_bit_changes_the_checksum() -> None:
    whole = crc32c.value(RANDOM)
    for position in (0, 70, 1000, ALL_BYTES // 2, ALL_BYTES - 1):
        damaged = RANDOM.copy()
        damaged[position] ^= 0x10
        assert crc32c.value(damaged) != whole, position
