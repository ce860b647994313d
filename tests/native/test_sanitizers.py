"""The library's tests, on a build with the sanitizers of addresses and of undefined behaviour."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from native.build import compile_library

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
FLAGS = ("-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
RUNTIMES = ("libasan.so", "libubsan.so", "libstdc++.so.6")
"""Libraries that must be there before Python's own; the last one because extensions of Python throw exceptions."""
TESTS = ("tests/native", "tests/plane/test_update_rule_bits.py")
RUN_TESTS = """
import sys
from pathlib import Path
from native import sources
sources.LIBRARY = Path(sys.argv[1])
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""
READ_TOO_MUCH = """
import sys
from pathlib import Path
from native import sources
sources.LIBRARY = Path(sys.argv[1])
from native.library import KERNELS
import numpy as np
array = np.zeros(10_000, np.float32)
KERNELS.add(array.ctypes.data, array.ctypes.data, array.ctypes.data, array.size + 1)
"""


@pytest.fixture(scope="module")
def library() -> Path:
    path = ROOT / "build" / "sanitized" / "libtiermesh.so"
    compile_library(path, *FLAGS)
    return path


def run(script: str, library: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    found = []
    for name in RUNTIMES:
        command = ["cc", f"-print-file-name={name}"]
        path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if not Path(path).is_absolute():
            pytest.skip(f"this compiler has no {name}")
        found.append(path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    options = {
        "LD_PRELOAD": " ".join(found),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps memory until it ends
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    return subprocess.run(
        [sys.executable, "-c", script, str(library), *arguments],
        cwd=ROOT, env={**kept, **options}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_the_library_keeps_to_its_memory_and_to_what_c_defines(library: Path) -> None:
    done = run(
        RUN_TESTS, library, "-q", "-n0", "-p", "no:cacheprovider", "--hypothesis-profile", "same", *TESTS
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout


def test_an_element_too_many_is_found(library: Path) -> None:
    done = run(READ_TOO_MUCH, library)
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
