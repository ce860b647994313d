"""Which installed files are a user's own model: those that a job's first build copies.

They are the files of the package that has the model's module, data files and subpackages too, and the modules that
these import from the same folder of `sys.path`. A module outside of packages counts alone. Imports are read from the
source, which is not run. Installed packages of others don't count, and neither does Tiermesh.
"""

from __future__ import annotations

import ast
import importlib
import sys
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ModuleSpec
from pathlib import Path

from services.errors import Refused
from services.files.code_archive import MOST_CODE_BYTES, SHIPPED_PACKAGES, CodeFiles, check_file_count
from services.files.code_folder import read_code_folder, read_unchanging

_INSTALLED = ("site-packages", "dist-packages")
"""Names of folders of installed packages; the versions of those that compute are facts of their own."""
_SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)
"""Suffixes of modules, in the order in which Python looks for them."""
_SHIPPED_ROOT = Path(__file__).resolve().parents[1]


def read_own_modules(module: str) -> CodeFiles:
    """Return the installed files of an own model; none for one that ships with Tiermesh, or is not installed.

    Args:
        module: name of the module with the model's factory.

    Raises:
        Refused: its files can't be read, or are too many or too large; or they are no files.
    """
    top = module.partition(".")[0]
    spec = None if top in sys.stdlib_module_names else _find_top(top)
    if spec is None:
        return {}  # the import says so
    places = list(spec.submodule_search_locations or [])
    roots = [Path(place).parent for place in places] or [Path(spec.origin or "").parent]
    root = next((each.resolve() for each in roots if _find_file(module, each) is not None), None)
    if root is None:
        if any(each.is_dir() for each in roots):
            return {}
        raise Refused(
            "its code is in no file of its own, as in an archive, so it can't be copied; install it as files"
        )
    return _Reader(root, module).read()


def _find_top(name: str) -> ModuleSpec | None:
    """Return where a top-level module is installed, which may have happened since this process began."""
    importlib.invalidate_caches()
    found = (finder.find_spec(name, None) for finder in sys.meta_path)
    return next((spec for spec in found if spec is not None), None)


class _Reader:
    """Reader of one own model's files.

    Args:
        root: folder of `sys.path` that has the module's top package.
        module: name of the module.
    """

    def __init__(self, root: Path, module: str) -> None:
        self._root = root
        self._module = module
        self._files: dict[str, bytes] = {}
        self._size_bytes = 0

    def read(self) -> CodeFiles:
        waiting, seen = _with_packages(self._module), set[str]()
        main = _find_file(self._module, self._root)
        assert main is not None
        if self._is_own(main, self._module) and main.parent != self._root:
            for name, content in read_code_folder(main.parent, links=True).items():
                path = main.parent / name
                self._add(path, content)
                if path.suffix in SOURCE_SUFFIXES:
                    waiting |= _imports(self._name_of(path), path, content)
        while waiting:
            name = waiting.pop()
            seen.add(name)
            file = _find_file(name, self._root)
            if file is None or not self._is_own(file, name):
                continue
            if self._key(file) not in self._files:
                self._add(file, read_unchanging(file, MOST_CODE_BYTES - self._size_bytes))
            waiting |= _imports(name, file, self._files[self._key(file)]) - seen
        return self._files

    def _add(self, path: Path, content: bytes) -> None:
        self._files[self._key(path)] = content
        self._size_bytes += len(content)
        check_file_count(len(self._files))

    def _key(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _name_of(self, path: Path) -> str:
        parts = path.relative_to(self._root).with_suffix("").parts
        return ".".join(parts[:-1] if _is_package(path) else parts)

    def _is_own(self, file: Path, name: str) -> bool:
        """Return whether a file belongs to the model: to its package, or to its folder if that is not shared."""
        top = name.partition(".")[0]
        if self._root == _SHIPPED_ROOT and top in SHIPPED_PACKAGES:
            return False
        if self._root.name in _INSTALLED:
            return top == self._module.partition(".")[0]
        return not any(part in _INSTALLED for part in file.relative_to(self._root).parts)


def _find_file(name: str, root: Path) -> Path | None:
    """Return the file of a module below a folder; None if it is not there."""
    place = root.joinpath(*name.split("."))
    stems = (place / "__init__", place)
    candidates = (stem.with_name(f"{stem.name}{suffix}") for stem in stems for suffix in _SUFFIXES)
    return next((each for each in candidates if each.is_file()), None)


def _is_package(file: Path) -> bool:
    return file.name.partition(".")[0] == "__init__"


def _with_packages(name: str) -> set[str]:
    """Return a module and the packages around it."""
    parts = name.split(".")
    return {".".join(parts[: count + 1]) for count in range(len(parts))}


def _imports(name: str, file: Path, content: bytes) -> set[str]:
    """Return the modules that a file may import, packages around them included; none for a compiled one."""
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
            found |= _with_packages(each)
    return found
