"""Hash of the code that computes, since workers with other code may compute other bits.

A file counts by its syntax tree, without docstrings: comments, formatting and line numbers don't change the hash. No
version enters it. The arithmetic on gradients counts by a number, since tests compare its bits with golden ones: code
that moves or is rewritten counts as the same code. Other files that are left out compute nothing.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path

from mesh.fingerprint import find_idle_code
from services.config.job import JobConfig
from services.config.models import CustomConfig
from services.errors import Refused
from services.input_files import read_input_file
from services.printable import printable_path

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

PACKAGES = (
    "aggregator",
    "cli",
    "mesh",
    "optimizer",
    "plane",
    "protos",
    "services",
    "tiermesh",
    "training",
    "worker",
)
"""Packages of Tiermesh, which an own model imports but does not own."""

INSTALLED = ("site-packages", "dist-packages")
"""Names of folders of installed packages; the versions of those that compute are facts of their own."""

_SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)
"""Suffixes of modules, in the order in which Python looks for them. Compiled modules count by their bytes."""

MOST_OWN_FILES = 1000
MOST_OWN_BYTES = 16 << 20
"""Limits on a user's own model: its module, and the modules of its folder that it imports."""


def hash_code(backend: str, own_module: str | None = None) -> str:
    """Return the SHA-256 of the code that computes a job, as hexadecimal digits.

    Args:
        backend: backend of the mesh. Code that computes nothing with it does not count.
        own_module: name of the imported module with the user's own model; None for a model of Tiermesh.

    Raises:
        Refused: the own model's files can't be read, or are too many.
    """
    shipped = _hash_shipped(backend)
    if own_module is None:
        return shipped
    return _combine([("tiermesh", shipped), *_hash_own(own_module)])


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


def _hash_shipped(backend: str) -> str:
    hashes = _hash_shipped_files()
    files = ((str(file.relative_to(ROOT)), hashes[file]) for file in shipped_files(backend))
    return _combine([("arithmetic", str(ARITHMETIC)), *files])


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


@dataclass(frozen=True)
class _OwnFile:
    """A file of an own model, as it was when it was first needed, which is when it was imported.

    Attributes:
        hash: SHA-256 of its syntax tree.
        imports: modules that it may import, packages around them included.
        size_bytes: size of the file.
    """

    hash: str
    imports: frozenset[str]
    size_bytes: int


def _hash_own(module_name: str) -> list[tuple[str, str]]:
    """Return name and hash of a module, and of all that it imports from its own package or folder."""
    root = _find_folder(module_name)
    if root is None or _find_file(module_name, root) is None:
        raise Refused(
            f"transformer_config.model_type: {module_name}: its code is in no file of its own, as in an archive, so "
            "workers can't compare it; install it as files"
        )
    waiting, found, size_bytes = [module_name], dict[str, str](), 0
    while waiting:
        name = waiting.pop()
        file = _find_file(name, root)
        if name in found or file is None or not _is_own(file, root, name, module_name):
            continue
        own = _read_own(name, file)
        found[name] = own.hash
        size_bytes += own.size_bytes
        if len(found) > MOST_OWN_FILES or size_bytes > MOST_OWN_BYTES:
            raise Refused(
                f"transformer_config.model_type: {module_name} imports more than {MOST_OWN_FILES} files or "
                f"{MOST_OWN_BYTES} bytes from {printable_path(root)}; keep it in a folder of its own"
            )
        waiting += own.imports - found.keys()
    return sorted(found.items())


@cache
def _read_own(name: str, file: Path) -> _OwnFile:
    content = read_input_file("transformer_config.model_type", file, MOST_OWN_BYTES)
    return _OwnFile(hash_source(content), frozenset(_imports(name, file, content)), len(content))


def _find_folder(module_name: str) -> Path | None:
    """Return the folder from which the top package of an imported module comes; None if it comes from no file."""
    origin = getattr(sys.modules.get(module_name), "__file__", None)
    if not origin:
        return None
    depth = module_name.count(".") + _is_package(Path(origin))
    return Path(origin).resolve().parents[depth]


def _find_file(name: str, root: Path) -> Path | None:
    """Return the file of a module below a folder; None if it is not there."""
    place = root.joinpath(*name.split("."))
    stems = (place / "__init__", place)
    candidates = (stem.with_name(f"{stem.name}{suffix}") for stem in stems for suffix in _SUFFIXES)
    return next((each for each in candidates if each.is_file()), None)


def _is_package(file: Path) -> bool:
    return file.name.partition(".")[0] == "__init__"


def _is_own(file: Path, root: Path, name: str, module_name: str) -> bool:
    """Return whether a file belongs to the own model: to its package, or to its folder if that is not shared."""
    if root not in file.parents or any(_is_within(file, ROOT / package) for package in PACKAGES):
        return False
    if root.name in INSTALLED:
        return name.partition(".")[0] == module_name.partition(".")[0]
    return not any(part in INSTALLED for part in file.relative_to(root).parts)


def _imports(name: str, file: Path, content: bytes) -> set[str]:
    """Return the modules that a file may import, packages around them included."""
    package = name if _is_package(file) else name.rpartition(".")[0]
    found: set[str] = set()
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{each.name}" for each in node.names)]
        else:
            continue
        for each in names:
            parts = each.split(".")
            found.update(".".join(parts[: count + 1]) for count in range(len(parts)))
    return found


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
