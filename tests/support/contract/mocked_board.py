"""The real ttnn, its host side whole, on a board that is only described: with chips that nobody has.

tt-metal opens a cluster that a descriptor describes, checks every call, allocates, builds and caches programs, and
executes nothing: what is read back is zeros. The compiler for the chips' kernels isn't in the wheel; since nothing
runs them, a shell script that writes one prepared program stands in for it, in a shadow of the runtime folder.

    python -m tests.support.contract.mocked_board BOARD ARGUMENT...    runs this Python with the arguments on a board
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import yaml

from tests.support.contract.boards import BOARDS
from tests.support.contract.kernel_compiler import compiler

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / "mock"
"""Kernel cache and shadow runtime, kept between runs: a cold cache costs seconds. Boards share the cache, in which
tt-metal keeps kernels of different chips apart and those of alike chips together."""


def missing() -> str | None:
    """Why there can be no mocked board here, None if there can."""
    if find_spec("ttnn") is None:
        return f"ttnn has no wheel for Python {sys.version.split()[0]} here (CPython 3.10 and 3.12, x86-64 Linux)"
    return None


def prepare(board: str, folder: Path = BUILD) -> dict[str, str]:
    """Make what a mocked board needs in `folder`; the environment that a process needs before importing ttnn."""
    spec = find_spec("ttnn")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = Path(next(iter(spec.submodule_search_locations)))
    runtime = folder / "root"
    stand_in = runtime / "runtime" / "sfpi" / "compiler" / "bin" / "riscv-tt-elf-g++"
    stand_in.parent.mkdir(parents=True, exist_ok=True)
    stand_in.write_text(compiler())
    stand_in.chmod(0o755)
    links = {runtime / entry.name: entry for entry in package.iterdir() if entry.name != "runtime"}
    links[runtime / "runtime" / "hw"] = package / "runtime" / "hw"
    for link, target in links.items():
        if link.is_symlink() and link.readlink() == target:
            continue
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    descriptor = folder / f"{board}.yaml"
    descriptor.write_text(yaml.safe_dump(BOARDS[board].descriptor()))
    return {
        "TT_METAL_RUNTIME_ROOT": str(runtime),
        "TT_METAL_MOCK_CLUSTER_DESC_PATH": str(descriptor),
        "TT_METAL_SLOW_DISPATCH_MODE": "1",
        "TT_METAL_LOGGER_LEVEL": "off",
        "LOGURU_LEVEL": "INFO",
        "TT_METAL_CACHE": str(folder / "cache"),
        "TT_METAL_LOGS_PATH": str(folder),
    }


def run_on(
    board: str,
    *arguments: str,
    timeout_seconds: float = 240,
    environment: Mapping[str, str] | None = None,
    folder: Path = BUILD,
) -> subprocess.CompletedProcess[str]:
    """Run this Python with `arguments` in a process of its own, from the root of the repository, on a mocked board.

    One at a time: processes would fill the kernel cache over each other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TT_")}
        return subprocess.run(
            [sys.executable, *arguments],
            env={
                **inherited,
                **prepare(board, folder),
                "PYTHONPATH": str(ROOT),
                **(environment or {}),
            },
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )


if __name__ == "__main__":
    ran = run_on(*sys.argv[1:])
    sys.stdout.write(ran.stdout)
    sys.stderr.write(ran.stderr)
    sys.exit(ran.returncode)
