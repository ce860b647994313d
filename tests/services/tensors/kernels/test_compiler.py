"""Which path computes is chosen once for a process, and said; the cache is the user's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.tensors.kernels import arithmetic, compiler

ROOT = Path(__file__).parents[4]
PREPARE = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
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
    compiler.load(arithmetic.COMPILED) is None, reason="no compiled kernels here"
)


def prepare(tmp_path: Path, before: str = "", **environment: str) -> str:
    """What a process of these environment variables says."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "TIERMESH_"))
    }
    done = subprocess.run(
        (sys.executable, "-c", before + PREPARE),
        env={**clean, "XDG_CACHE_HOME": str(tmp_path), **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


@needs_numba
def test_kernels_are_compiled_once_and_cached_where_xdg_says(tmp_path: Path) -> None:
    cached = tmp_path / "tiermesh" / "kernels"
    said = prepare(tmp_path)
    assert "services.tensors.kernels.compiled_arithmetic: compiled kernels, ready after" in said
    assert str(cached) in said
    files = {path: path.stat().st_mtime_ns for path in cached.rglob("*.nbc")}
    assert files
    assert cached.stat().st_mode & 0o077 == 0
    prepare(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in cached.rglob("*.nbc")} == files


@needs_numba
def test_where_nothing_can_be_cached_kernels_are_compiled_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = prepare(tmp_path, XDG_CACHE_HOME=str(tmp_path / "file"))
    assert "compiled kernels, ready after" in said
    assert "cached in no folder" in said
    assert "[204.]" in said


@needs_numba
def test_a_user_without_a_home_compiles_all_the_same(tmp_path: Path) -> None:
    before = "import pathlib\ndef none(): raise RuntimeError('no home')\npathlib.Path.home = none\n"
    said = prepare(tmp_path, before, XDG_CACHE_HOME="")
    assert "no folder, as this user has no home; XDG_CACHE_HOME names one" in said


def test_the_environment_chooses_numpy(tmp_path: Path) -> None:
    said = prepare(tmp_path, TIERMESH_KERNELS="numpy")
    assert "services.tensors.kernels.compiled_arithmetic: numpy computes, as TIERMESH_KERNELS says" in said
    assert "[204.]" in said
    assert not list(tmp_path.iterdir())


def test_without_numba_numpy_computes(tmp_path: Path) -> None:
    said = prepare(tmp_path, before="import sys; sys.modules['numba'] = None\n")
    assert "numpy computes, with the same bits but slower; numba can't be imported" in said
    assert "[204.]" in said


def test_numba_asked_for_and_not_there_is_refused(tmp_path: Path) -> None:
    code = PREPARE.split("import numpy\n")[0]
    done = subprocess.run(
        (sys.executable, "-c", "import sys; sys.modules['numba'] = None\n" + code),
        env={**os.environ, "TIERMESH_KERNELS": "numba"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "refused: TIERMESH_KERNELS numba: it can't be imported" in done.stdout


def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERMESH_KERNELS", "fast")
    monkeypatch.setattr(compiler, "_loaded", {})
    with pytest.raises(compiler.Refused, match="TIERMESH_KERNELS fast: expected auto, numba or numpy"):
        arithmetic.load_kernels()
