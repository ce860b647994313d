"""Hash of the code that computes, since workers with other code may compute other bits.

A file counts by its syntax tree, without docstrings: comments, formatting and line numbers don't change the hash. No
version enters it. The arithmetic on gradients counts by a number, since tests compare its bits with golden ones: code
that moves or is rewritten counts as the same code. Other files that are left out compute nothing.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from mesh.fingerprint import find_idle_code
from services.config.job import JobConfig
from services.config.models import CustomConfig
from services.files.code_archive import CodeFiles
from services.protocol.fingerprint import OWN_CODE

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

MOST_NAMED_FILES = 8
"""Number of an own model's files that are facts of their own; a fingerprint has at most 32 facts."""
LONGEST_NAMED_FILE = 50
SHOWN_DIGITS = 16
"""Number of digits of a file's hash in a fingerprint: 64 bits."""


def hash_code(backend: str) -> str:
    """Return the SHA-256 of the code of Tiermesh that computes a job, as hexadecimal digits.

    Args:
        backend: backend of the mesh. Code that computes nothing with it does not count.
    """
    hashes = _hash_shipped_files()
    files = ((str(file.relative_to(ROOT)), hashes[file]) for file in shipped_files(backend))
    return _combine([("arithmetic", str(ARITHMETIC)), *files])


def hash_source(source: bytes) -> str:
    """Return the SHA-256 of a Python file's syntax tree without docstrings; of its bytes if it has none."""
    try:
        text = _describe(_without_docstrings(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return hashlib.sha256(source).hexdigest()
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


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


def _combine(hashes: Iterable[tuple[str, str]]) -> str:
    digest = hashlib.sha256()
    for name, value in hashes:
        digest.update(f"{name}\0{value}\n".encode())
    return digest.hexdigest()


# ---- a user's own model ----


def find_own_module(config: JobConfig) -> str | None:
    """Return the module of a job's own model; None for a model of Tiermesh."""
    model = config.model
    return model.model_type.partition(":")[0] if isinstance(model, CustomConfig) else None


def describe_own_code(module: str, files: CodeFiles) -> dict[str, str]:
    """Return the facts of a fingerprint that name an own model's code: some files by their names, others together.

    Args:
        module: name of the module with the model's factory, whose file is among those that are named.
        files: all files of the code. Bytecode caches and hidden files are none.
    """
    path = module.replace(".", "/")
    names = sorted(files, key=lambda name: (not name.startswith((f"{path}.", f"{path}/__init__.")), name))
    hashes = {name: _hash_file(name, files[name]) for name in names}
    alone = [name for name in names if len(name) <= LONGEST_NAMED_FILE][:MOST_NAMED_FILES]
    facts = {f"{OWN_CODE} {name}": hashes[name][:SHOWN_DIGITS] for name in alone}
    others = [(name, hashes[name]) for name in sorted(set(names) - set(alone))]
    return facts | (
        {OWN_CODE: f"{_combine(others)[:SHOWN_DIGITS]} ({len(others)} more files)"} if others else {}
    )


def _hash_file(name: str, content: bytes) -> str:
    return hash_source(content) if name.endswith(".py") else hashlib.sha256(content).hexdigest()


# ---- syntax trees ----


def _without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in body or () if not _is_text(each)] or [ast.Pass()]
    return tree


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _describe(node: object) -> str:
    """Return a tree as text that is the same under all versions of Python: without empty and absent fields."""
    if isinstance(node, ast.AST):
        fields = [
            f"{name}={_describe(value)}"
            for name, value in ast.iter_fields(node)
            if value is not None and value != [] and name not in _TEXT_ONLY
        ]
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list):
        return f"[{','.join(map(_describe, node))}]"
    return repr(node)


_TEXT_ONLY = ("ctx", "kind", "type_comment")
"""Fields of a tree that say nothing about what is computed: the place of a name, and prefixes of texts."""
