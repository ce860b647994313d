"""Build of the C library by the system's compiler, or by the one that the environment variable CC names."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from native import Unusable
from native.sources import FOLDER, hash_sources

FLAGS = (
    # No -march and no CFLAGS of the environment: the library runs on every CPU, and its bits depend on these flags.
    *("-std=c11", "-D_GNU_SOURCE", "-O3", "-g1", "-pthread", "-Wall", "-Wextra"),
    # A product and a sum are two operations, also on CPUs that have one for both.
    "-ffp-contract=off",
    # Nobody reads errno or traps after an operation, so comparisons and roots can be taken several at a time.
    *("-fno-math-errno", "-fno-trapping-math"),
    *("-fPIC", "-shared", "-fvisibility=hidden", "-fstack-protector-strong", "-Wl,-z,relro,-z,now,-z,defs"),
)
REMEDY = (
    "install a C compiler (Debian: apt-get install gcc libc6-dev), or name one in CC; the system must be Linux on "
    "x86-64 or aarch64"
)


def compile_library(target: Path, *flags: str) -> None:
    """Compile all C files to a shared library.

    Args:
        target: path of the library. A library that processes have loaded is replaced, not overwritten.
        flags: flags of the compiler, after `FLAGS`.

    Raises:
        Unusable: the compiler is missing or failed; the text has what it printed.
    """
    compiler = shlex.split(os.environ.get("CC") or "cc")
    built = target.with_suffix(".partial")
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [
        *(*compiler, *FLAGS, *flags, f'-DTIERMESH_SOURCES="{hash_sources()}"'),
        *("-o", str(built), *map(str, sorted(FOLDER.glob("*.c")))),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Unusable(
            f"the C library: {compiler[0]} can't be started ({error.strerror}); {REMEDY}"
        ) from None
    if done.returncode:
        raise Unusable(f"{done.stderr.strip()}\nthe C library: {compiler[0]} failed, see above; {REMEDY}")
    print(done.stderr, end="", file=sys.stderr)
    built.replace(target)
