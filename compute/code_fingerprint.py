"""Hash of the code that computes, since workers with other code may compute other bits.

A file counts by its syntax tree, without docstrings: comments, formatting and line numbers don't change the hash. No
version enters it. The arithmetic on gradients counts by a number, since tests compare its bits with golden ones: code
that moves or is rewritten counts as the same code. Other files that are left out compute nothing.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from mesh.fingerprint import find_idle_code
from services.files.source_hash import combine_hashes, hash_source

ROOT = Path(__file__).resolve().parents[1]

ARITHMETIC = 1
"""Number of the arithmetic: kernels and wire types, layouts, the reduction tree, and the sums over it.

It counts in place of their files. tests/worker/test_arithmetic.py has the SHA-256 of what they compute from fixed
inputs. Raise the number with any change of those bits, and leave the hashes of earlier numbers as they are. A change
that keeps the bits, such as a move or a rewrite in C, keeps the number.
"""

COMPUTING = (
    "training",
    "mesh",
    "services/checkpoints/hugging_face.py",
    "services/config/corpus.py",
    "services/config/tokenizer_file.py",
    "services/config/windows.py",
    "services/corpora/token_file.py",
    "services/pipeline/exchange.py",
    "services/pipeline/schedule.py",
    "services/pipeline/split.py",
)
"""Files and folders of the code that computes, relative to the tree. Of corpora, the rest describes a file of token
ids, and a job's identity of the file fixes what it says."""

NOT_COMPUTING = (
    "mesh/descriptors",
    "mesh/fingerprint.py",
    "mesh/link_check.py",
    "mesh/memory.py",
    "mesh/ttnn_errors.py",
    "training/api.py",
    "training/generation",
)
"""Files and folders in COMPUTING on which no gradient and no loss depends."""


def hash_code(backend: str) -> str:
    """Return the SHA-256 of the code of Tiermesh that computes a job, as hexadecimal digits.

    Args:
        backend: backend of the mesh. Code that computes nothing with it does not count.
    """
    hashes = _hash_shipped_files()
    files = ((str(file.relative_to(ROOT)), hashes[file]) for file in shipped_files(backend))
    return combine_hashes([("arithmetic", str(ARITHMETIC)), *files])


@cache
def shipped_files(backend: str | None = None) -> list[Path]:
    """Return the files of Tiermesh that compute, with this backend or with any, in order of their names."""
    left_out = (*NOT_COMPUTING, *(find_idle_code(backend) if backend else ()))
    found = [file for part in COMPUTING for file in _files_of(ROOT / part)]
    return [file for file in found if not any(_is_within(file, ROOT / part) for part in left_out)]


def remember_shipped_code() -> None:
    """Hash the code of Tiermesh now, at the start: an upgrade may replace the files under a process that runs."""
    _hash_shipped_files()


@cache
def _hash_shipped_files() -> dict[Path, str]:
    return {file: hash_source(file.read_bytes()) for file in shipped_files()}


def _files_of(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _is_within(file: Path, place: Path) -> bool:
    return file == place or place in file.parents
