"""Tests of shared memory: readers see what was written, and never read beyond the memory."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tensors.shared_memory import MappedArray, NotShared, SharedArray
from tests.support.shared_memory import count_descriptors, count_mappings, count_shared_memory

PLACE_BYTES = 64


def map_array(array: SharedArray, **changed: int) -> MappedArray:
    """Map the array as another process would, with some arguments changed."""
    seen = {"process": os.getpid(), "descriptor": array.descriptor, "identity": array.identity, **changed}
    return MappedArray(**seen)


def test_reader_sees_what_is_written_and_cannot_write() -> None:
    array = SharedArray(200, PLACE_BYTES)
    seen = map_array(array)
    array.place(1)[:] = 7
    assert seen.place(1).tolist() == [7] * PLACE_BYTES
    assert seen.place(0).tolist() == [0] * PLACE_BYTES
    assert not seen.payload.flags.writeable, "a writeable payload may be used as the target of a sum"
    assert [seen.place(chunk).size for chunk in range(5)] == [64, 64, 64, 8, 0]


def test_array_of_a_stripe_has_places_of_its_chunks_only() -> None:
    array = SharedArray(200, PLACE_BYTES, stripe_count=3)
    seen = map_array(array)
    array.place(5)[:] = 7
    array.mark(5, 9)
    assert seen.place(5).tolist() == [7] * PLACE_BYTES
    assert seen.is_marked(5, 9)
    assert np.flatnonzero(seen.payload).tolist() == list(range(64, 128)), "the second chunk of the stripe"
    assert [seen.place(chunk).size for chunk in (2, 5, 8, 11, 14)] == [64, 64, 64, 8, 0]
    assert not seen.is_marked(14, 9)


def test_mark_identifies_the_content_of_a_place() -> None:
    array = SharedArray(200, PLACE_BYTES)
    seen = map_array(array)
    assert not any(seen.is_marked(chunk, 0) for chunk in range(5)), "0 is no sequence number"
    array.mark(3, 9)
    assert [seen.is_marked(chunk, 9) for chunk in range(5)] == [False, False, False, True, False]
    array.mark(3, 0)
    assert not seen.is_marked(3, 9)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 1500))
def test_array_of_any_size_is_read_back(payload_bytes: int, place_bytes: int) -> None:
    array = SharedArray(payload_bytes, place_bytes)
    seen = map_array(array)
    content = np.arange(payload_bytes) % 251
    array.payload[:] = content
    chunks = -(-payload_bytes // place_bytes)
    for chunk in range(chunks):
        array.mark(chunk, chunk + 1)
    assert np.array_equal(np.concatenate([seen.place(chunk) for chunk in range(chunks)]), content)
    assert all(seen.is_marked(chunk, chunk + 1) for chunk in range(chunks))
    array.close()


@pytest.mark.parametrize(
    ("changed", "facts"),
    [
        ({"identity": 1}, "identity"),
        ({"descriptor": 0}, "no memory of Tiermesh"),
        ({"descriptor": 99999}, "No such file"),
        ({"process": 4194304999}, "No such file"),
    ],
)
def test_wrong_memory_is_refused(changed: dict[str, int], facts: str) -> None:
    array = SharedArray(200, PLACE_BYTES)
    with pytest.raises((NotShared, OSError), match=facts):
        map_array(array, **changed)


def memory(content: bytes, size_bytes: int, *, seal: bool = True) -> int:
    """Return a descriptor of memory with any content, size and seal."""
    made = os.memfd_create("tiermesh", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(made, size_bytes)
    os.pwrite(made, content, 0)
    if seal:
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return made


def header(*numbers: int) -> bytes:
    return np.array(numbers, "<u8").tobytes()


@pytest.mark.parametrize(
    ("content", "size_bytes", "seal", "facts"),
    [
        (header(5, 4, 64, 200, 1), 4096 + 200, False, "shrinking"),
        (b"", 8, True, "too small for a header"),
        (header(5, 4, 64, 200, 1), 4096 + 199, True, "size is not that of the header"),
        (header(5, 2**40, 1, 2**40, 1), 4096 + 200, True, "size is not that of the header"),
        (header(5, 4, 0, 200, 1), 4096 + 200, True, "header contradicts itself"),
        (header(5, 5, 64, 200, 1), 4096 + 200, True, "header contradicts itself"),
        (header(5, 4, 64, 200, 0), 4096 + 200, True, "header contradicts itself"),
    ],
)
def test_memory_with_a_wrong_header_is_refused(
    content: bytes, size_bytes: int, seal: bool, facts: str
) -> None:
    made = memory(content, size_bytes, seal=seal)
    try:
        with pytest.raises(NotShared, match=facts):
            MappedArray(os.getpid(), made, 5)
    finally:
        os.close(made)


def test_reused_descriptor_is_refused() -> None:
    array, other = SharedArray(200, PLACE_BYTES), SharedArray(200, PLACE_BYTES)
    os.dup2(other.descriptor, array.descriptor)
    with pytest.raises(NotShared, match="identity"):
        MappedArray(os.getpid(), array.descriptor, array.identity)
    assert MappedArray(os.getpid(), array.descriptor, other.identity).place(0).size == PLACE_BYTES


def test_view_outlives_the_array() -> None:
    array = SharedArray(200, PLACE_BYTES)
    array.place(0)[:] = 3
    view = map_array(array).place(0)
    array.close()
    del array
    gc.collect()
    assert view.tolist() == [3] * PLACE_BYTES


def test_no_memory_or_descriptor_leaks() -> None:
    gc.collect()
    before = count_shared_memory()
    array = SharedArray(200, PLACE_BYTES)
    seen = map_array(array)
    assert count_shared_memory() > before
    del array, seen
    gc.collect()
    assert count_shared_memory() == before


def test_memory_of_a_killed_process_lives_as_long_as_its_views() -> None:
    code = (
        "from services.tensors.shared_memory import SharedArray\n"
        "array = SharedArray(200, 64)\n"
        "array.place(0)[:] = 5\n"
        "print(array.descriptor, array.identity, flush=True)\n"
        "input()\n"
    )
    gc.collect()
    before = count_mappings()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        descriptor, identity = (int(each) for each in owner.stdout.readline().split())
        seen = MappedArray(owner.pid, descriptor, identity)
        owner.kill()
    assert seen.place(0).tolist() == [5] * PLACE_BYTES
    del seen
    gc.collect()
    assert count_mappings() == before


def test_out_of_memory_raises_and_leaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = count_descriptors()
    monkeypatch.setattr("services.tensors.shared_memory.os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        SharedArray(200, PLACE_BYTES)
    assert count_descriptors() == before
