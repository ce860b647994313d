"""Tests of the choice between compiled kernels and numpy, and of the compiler's cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.errors import Refused
from services.tensors.kernels import arithmetic, compiler

ROOT = Path(__file__).parents[4]
LOAD_KERNELS = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
from services.errors import Refused
from services.errors import Refused
from services.tensors.kernels import arithmetic
try:
    arithmetic.load_kernels()
except Refused as refused:
    print("refused:", refused)
import numpy
print(arithmetic.norm_squared_blocks(numpy.arange(9, dtype=numpy.float32)))
"""

needs_numba = pytest.mark.skipif(
    compiler.load(arithmetic.COMPILED_MODULE) is None, reason="no compiled kernels here"
)


def run_and_read_log(tmp_path: Path, before: str = "", **environment: str) -> str:
    """Load the kernels in a new process with these environment variables; return its output."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "TIERMESH_"))
    }
    done = subprocess.run(
        (sys.executable, "-c", before + LOAD_KERNELS),
        env={**clean, "XDG_CACHE_HOME": str(tmp_path), **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


@pytest.mark.long
@needs_numba
def test_kernels_are_compiled_once_and_cached_under_xdg_cache_home(tmp_path: Path) -> None:
    cached = tmp_path / "tiermesh" / "kernels"
    log = run_and_read_log(tmp_path)
    assert "services.tensors.kernels.compiled_arithmetic: compiled kernels, ready after" in log
    assert str(cached) in log
    files = {path: path.stat().st_mtime_ns for path in cached.rglob("*.nbc")}
    assert files
    assert cached.stat().st_mode & 0o077 == 0
    run_and_read_log(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in cached.rglob("*.nbc")} == files


@pytest.mark.long
@needs_numba
def test_kernels_are_compiled_without_a_cache_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = run_and_read_log(tmp_path, XDG_CACHE_HOME=str(tmp_path / "file"))
    assert "compiled kernels, ready after" in log
    assert "cached in no folder" in log
    assert "[204.]" in log


@pytest.mark.long
@needs_numba
def test_kernels_are_compiled_for_a_user_without_home(tmp_path: Path) -> None:
    before = "import pathlib\ndef none(): raise RuntimeError('no home')\npathlib.Path.home = none\n"
    log = run_and_read_log(tmp_path, before, XDG_CACHE_HOME="")
    assert "no home" in log and "XDG_CACHE_HOME" in log


def test_environment_chooses_numpy(tmp_path: Path) -> None:
    log = run_and_read_log(tmp_path, TIERMESH_KERNELS="numpy")
    assert "compiled_arithmetic: numpy computes" in log and "TIERMESH_KERNELS" in log
    assert "[204.]" in log
    assert not list(tmp_path.iterdir())


def test_without_numba_numpy_computes(tmp_path: Path) -> None:
    log = run_and_read_log(tmp_path, before="import sys; sys.modules['numba'] = None\n")
    assert "numpy computes" in log and "numba can't be imported" in log
    assert "[204.]" in log


def test_missing_numba_is_refused_if_asked_for(tmp_path: Path) -> None:
    code = LOAD_KERNELS.split("import numpy\n")[0]
    done = subprocess.run(
        (sys.executable, "-c", "import sys; sys.modules['numba'] = None\n" + code),
        env={**os.environ, "TIERMESH_KERNELS": "numba"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "refused: TIERMESH_KERNELS numba: numba can't be imported" in done.stdout


def test_unknown_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERMESH_KERNELS", "fast")
    monkeypatch.setattr(compiler, "_loaded", {})
    with pytest.raises(Refused, match=r"TIERMESH_KERNELS fast.*auto.*numba.*numpy"):
        arithmetic.load_kernels()
