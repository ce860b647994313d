"""The library computes the same bits on aarch64, in an emulator. It shows instructions, not timing or weak ordering."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from native.build import FLAGS
from native.sources import FOLDER

DRIVER = Path(__file__).with_name("every_clone.c")
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which(COMPILER) is None or shutil.which(EMULATOR) is None,
        reason=f"no {COMPILER} and {EMULATOR}: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user",
    ),
]


def lines_of(compiler: str, program: Path, *emulator: str) -> list[str]:
    """Build the driver and return what it prints; it must compile without warnings."""
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
    sources = [DRIVER, *sorted(FOLDER.glob("*.c"))]
    command = [
        compiler,
        *flags,
        "-Werror",
        '-DTIERMESH_SOURCES="test"',
        "-static",
        "-o",
        program,
        *sources,
        "-lm",
    ]
    subprocess.run([*map(str, command)], check=True, timeout=60)
    done = subprocess.run([*emulator, str(program)], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()


def test_every_clone_of_both_architectures_gives_the_same_bits(tmp_path: Path) -> None:
    here = lines_of("gcc", tmp_path / "here")
    there = lines_of(COMPILER, tmp_path / "there", EMULATOR)
    assert len(here) >= 2 and len(there) == 2  # a line of checksums, then one for each clone
    assert {*here[1:]} == {there[1]}
    assert here[0] == there[0]
