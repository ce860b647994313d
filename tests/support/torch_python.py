"""The Python with PyTorch that tests find: this one, or that of the benchmarks, which `make torch` makes."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
WITHOUT = "no Python here has PyTorch, numpy and httpx2 (`make torch` makes one)"


@cache
def find_torch_python() -> str | None:
    """Return an interpreter with PyTorch and what the package `tiermesh` needs; None without one."""
    if find_spec("torch") is not None:
        return sys.executable
    peer = os.environ.get("TIERMESH_PEER_PYTHON")
    python = Path(peer) if peer else ROOT / "build" / "bench" / "torch" / "bin" / "python"
    if not python.is_file():
        return None
    probe = (
        "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('torch', 'numpy', 'httpx2'))))"
    )
    return str(python) if subprocess.run([python, "-c", probe], check=False).returncode == 0 else None
