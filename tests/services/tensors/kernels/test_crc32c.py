"""Tests that every path computes CRC-32C, for any start and length of the payload."""

from __future__ import annotations

import importlib
from types import ModuleType

import google_crc32c
import numpy as np
import pytest
from llvmlite import binding

from services.tensors.kernels import compiler, crc32c

LONG_BYTES = 1 << 18
ALL_BYTES = LONG_BYTES + 3000
RANDOM = np.random.Generator(np.random.Philox(0)).integers(0, 256, ALL_BYTES, np.uint8)
FEATURES = binding.get_host_cpu_features()
LENGTHS = [
    0,
    1,
    4095,
    LONG_BYTES // 2 - 1,
    *(LONG_BYTES + each for each in (0, 1, 15, 64, 127, 255, 256, 1000)),
]


def compiled_for(lanes: int, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Recompile the compiled path as on a CPU with this many 128-bit lanes."""
    needed = {2: ("vpclmulqdq", "avx2"), 4: ("vpclmulqdq", "avx2", "avx512f")}[lanes]
    if not all(FEATURES.get(each) for each in needed):
        pytest.skip(f"this CPU has not all features of {', '.join(needed)}")
    pretended = {**FEATURES, "avx512f": lanes == 4}
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: pretended)
    monkeypatch.setattr(compiler, "_cached", False)
    return importlib.reload(importlib.import_module(crc32c.COMPILED_MODULE))


@pytest.fixture(autouse=True)
def reset_loaded_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_loaded", {})


@pytest.mark.parametrize("path", ["0 lanes", "2 lanes", "4 lanes", "numpy"])
def test_every_path_computes_crc32c(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path == "numpy":
        monkeypatch.setenv(compiler.VARIABLE, "numpy")
    elif path == "0 lanes":
        monkeypatch.setattr(importlib.import_module(crc32c.COMPILED_MODULE), "LANES", 0)
    else:
        lanes = int(path[0])
        compiled = compiled_for(lanes, monkeypatch)
        assert lanes == compiled.LANES
    for length in LENGTHS:
        for start in (0, 1, 63):
            part = RANDOM[start : start + length]
            assert crc32c.value(part) == google_crc32c.value(part), f"{length} bytes from {start}"


def test_bytes_and_read_only_views_are_accepted() -> None:
    expected = google_crc32c.value(RANDOM)
    assert crc32c.value(RANDOM.tobytes()) == expected
    assert crc32c.value(memoryview(RANDOM.tobytes())) == expected
    assert crc32c.value(memoryview(RANDOM.view(np.float32)[:-100])) == google_crc32c.value(RANDOM[:-400])


def test_flipped_bit_changes_the_checksum() -> None:
    whole = crc32c.value(RANDOM)
    for position in (0, 70, 1000, LONG_BYTES, ALL_BYTES - 1):
        damaged = RANDOM.copy()
        damaged[position] ^= 0x10
        assert crc32c.value(damaged) != whole, position


@pytest.mark.parametrize(
    ("name", "value"), [("CPU_NAME", "generic"), ("CPU_FEATURES", ""), ("ENABLE_AVX", 0)]
)
def test_no_lanes_if_numba_compiles_for_another_cpu(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = importlib.import_module(crc32c.COMPILED_MODULE)
    monkeypatch.setattr(compiled.config, name, value)
    assert compiled._count_lanes() == 0


def test_no_lanes_if_the_cpu_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> None:
        raise RuntimeError

    compiled = importlib.import_module(crc32c.COMPILED_MODULE)
    monkeypatch.setattr(binding, "get_host_cpu_features", unknown)
    assert compiled._count_lanes() == 0
