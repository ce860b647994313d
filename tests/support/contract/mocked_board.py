"""Runs real ttnn on a mocked board: chips that are only described, without hardware.

tt-metal opens the cluster in a cluster descriptor. Its host side is real: it checks calls, allocates, builds and
caches programs. Nothing is executed, so every value read back is zero. The wheel lacks the compiler for the chips'
kernels. A shell script replaces it, in a copy of the runtime folder made of links.

    python -m tests.support.contract.mocked_board BOARD ARGUMENT...    run this Python with the arguments on a board
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
from tests.support.contract.kernel_compiler import compiler_script

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / "mock"
"""Folder of the kernel cache and the linked runtime. It is kept between runs, because a cold cache costs seconds.

Boards share the cache: tt-metal separates kernels of different chips and shares those of equal chips.
"""


def missing_requirement() -> str | None:
    """Return why this host can't run a mocked board; None if it can."""
    if find_spec("ttnn") is None:
        return f"ttnn has no wheel for Python {sys.version.split()[0]} here (CPython 3.10 and 3.12, x86-64 Linux)"
    return None


def prepare_board(board: str, folder: Path = BUILD) -> dict[str, str]:
    """Write the files of a mocked board to `folder`; return the environment to set before ttnn is imported."""
    spec = find_spec("ttnn")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = Path(next(iter(spec.submodule_search_locations)))
    runtime = folder / "root"
    compiler_path = runtime / "runtime" / "sfpi" / "compiler" / "bin" / "riscv-tt-elf-g++"
    compiler_path.parent.mkdir(parents=True, exist_ok=True)
    compiler_path.write_text(compiler_script())
    compiler_path.chmod(0o755)
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


def run_on_board(
    board: str,
    *arguments: str,
    timeout_seconds: float = 240,
    environment: Mapping[str, str] | None = None,
    folder: Path = BUILD,
) -> subprocess.CompletedProcess[str]:
    """Run this Python with `arguments` in a new process on a mocked board, from the root of the repository.

    A lock lets one process run at a time: concurrent processes would write the same entries of the kernel cache.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TT_")}
        return subprocess.run(
            [sys.executable, *arguments],
            env={
                **inherited,
                **prepare_board(board, folder),
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
    done = run_on_board(*sys.argv[1:])
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    sys.exit(done.returncode)
