"""One code path: training code knows neither whether a device or the emulator computes, nor in which dtype.

Outside of mesh/, no code names the emulator or asks for the backend. Outside of mesh/ and training/ops, no code calls
the device library or branches on the dtype of tensors on the mesh. The rules are checked on the syntax trees of all
packages, and a test plants a violation of each rule.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "protos",
    "native",
    "services",
    "plane",
    "mesh",
    "training",
    "compute",
    "worker",
    "aggregator",
    "optimizer",
    "cli",
)
ON_THE_MESH = ("training", "compute", "cli")
"""Packages with tensors on the mesh. Elsewhere, a dtype belongs to an array or a file."""

BACKENDS = {"auto", "ttnn", "emulator"}
"""Values of device_config.backend. A list of all of them is allowed."""


def sources(packages: tuple[str, ...], *without: str) -> list[str]:
    """Return the files of the packages, except those in the folders `without`."""
    return sorted(
        name
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        if not (name := path.relative_to(ROOT).as_posix()).startswith(without) and "_pb2" not in name
    )


def find_emulator_names(tree: ast.AST) -> Iterator[ast.AST]:
    """Find imports, names and strings that refer to the emulator."""
    prose = {id(node) for node in _docstrings(tree)} | {id(node) for node in _lists_of_backends(tree)}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(name)) | ast.alias(name=name):
                found = "emulator" in name
            case ast.Name() | ast.Attribute() | ast.arg() | ast.keyword():
                found = "emulator" in _word(node)
            case ast.Constant(value=str(text)):
                found = id(node) not in prose and (text.lower() == "emulator" or "mesh.emulator" in text)
            case _:
                continue
        if found:
            yield node


def find_backend_questions(tree: ast.AST) -> Iterator[ast.AST]:
    """Find comparisons and matches on a `backend`."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                looked_at = [node.left, *node.comparators]
            case ast.Match():
                looked_at = [node.subject]
            case _:
                continue
        if any(_word(part) == "backend" for part in looked_at):
            yield node


def _docstrings(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def _lists_of_backends(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.List, ast.Tuple)):
            values = [part.value for part in node.elts if isinstance(part, ast.Constant)]
            if set(values) == BACKENDS:
                yield from node.elts


def _word(node: ast.AST) -> str:
    """Return the last identifier of a node."""
    for field in ("id", "attr", "arg"):
        if isinstance(value := getattr(node, field, None), str):
            return value
    return ""


def find_library_calls(tree: ast.AST) -> Iterator[ast.AST]:
    """Find calls of functions of the device module, such as `mesh.tt.add(...)`, under any name of the module.

    Its constants, such as dtypes and layouts, are allowed.
    """
    modules = {"ttnn"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _word(node.value) == "tt":
            modules |= {_word(target) for target in node.targets}
        elif isinstance(node, ast.NamedExpr) and _word(node.value) == "tt":
            modules.add(_word(node.target))

    def is_of_module(node: ast.AST) -> bool:
        while isinstance(node, ast.Attribute):
            if node.attr == "tt":
                return True
            node = node.value
        return isinstance(node, ast.Name) and (node.id in modules or node.id == "tt")

    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            passed = _word(node.func) in ("getattr", "methodcaller", "vars", "partial")
            if is_of_module(node.func) or (passed and any(is_of_module(argument) for argument in node.args)):
                yield node


def find_dtype_branches(tree: ast.AST) -> Iterator[ast.AST]:
    """Find conditions and matches on a dtype: an attribute or name `dtype`, or a dtype of the library."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)):
            looked_at: ast.AST = node.test
        elif isinstance(node, ast.Match):
            looked_at = node.subject
        elif isinstance(node, ast.comprehension):
            looked_at = ast.Tuple(node.ifs)
        elif isinstance(node, (ast.Compare, ast.BoolOp)):
            looked_at = node
        elif isinstance(node, ast.Subscript):
            looked_at = node.slice  # A lookup by dtype is a branch too.
        else:
            continue
        if any(_word(part) == "dtype" or _is_device_dtype(part) for part in ast.walk(looked_at)):
            yield node


def _is_device_dtype(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr in ("bfloat16", "float32", "uint32", "int32")
        and _word(node.value) == "tt"
    )


def format_nodes(name: str, found: Iterator[ast.AST]) -> list[str]:
    return [f"{name}:{getattr(node, 'lineno', '?')}: {ast.unparse(node)[:100]}" for node in found]


def tree_of(name: str) -> ast.AST:
    return ast.parse((ROOT / name).read_text())


def test_outside_mesh_no_code_names_the_emulator() -> None:
    files = sources(PACKAGES, "mesh/")
    assert "training/step.py" in files
    assert [line for name in files for line in format_nodes(name, find_emulator_names(tree_of(name)))] == []


def test_outside_mesh_no_code_asks_for_the_backend() -> None:
    # Checks of a job's configuration may compare its values with each other.
    files = sources(PACKAGES, "mesh/", "services/config/")
    assert [
        line for name in files for line in format_nodes(name, find_backend_questions(tree_of(name)))
    ] == []


def test_only_mesh_and_ops_call_the_library() -> None:
    files = sources(PACKAGES, "mesh/", "training/ops/")
    assert "training/step.py" in files
    assert [line for name in files for line in format_nodes(name, find_library_calls(tree_of(name)))] == []


def test_only_mesh_and_ops_branch_on_dtype() -> None:
    files = sources(ON_THE_MESH, "training/ops/")
    assert "training/step.py" in files
    assert [line for name in files for line in format_nodes(name, find_dtype_branches(tree_of(name)))] == []


@pytest.mark.parametrize(
    "planted",
    [
        "import mesh.emulator",
        "from mesh.emulator import add",
        "from mesh import emulator as library",
        "if device.backend == 'emulator': pass",
        "name = 'emulator'",
        "importlib.import_module('mesh.emulator')",
        "on_emulator = True",
        "mesh.is_emulator()",
        "open_mesh(shape, emulator=True)",
        "known = ['ttnn', 'emulator']",
    ],
)
def test_emulator_names_are_found(planted: str) -> None:
    assert list(find_emulator_names(ast.parse(planted)))


@pytest.mark.parametrize(
    "planted",
    ["if mesh.backend != 'ttnn': pass", "match config.backend:\n    case _: pass", "x = 'ttnn' == backend"],
)
def test_backend_questions_are_found(planted: str) -> None:
    assert list(find_backend_questions(ast.parse(planted)))


@pytest.mark.parametrize(
    "planted",
    [
        "y = mesh.tt.add(x, x)",
        "tt = tape.mesh.tt\ny = tt.experimental.dropout(x)",
        "library = self._mesh.tt\ny = library.add(x, x)",
        "if (library := mesh.tt): library.add(x, x)",
        "y = getattr(mesh.tt, 'add')(x, x)",
        "ttnn.add(x, x)",
        "def op(tt):\n    return tt.add(1, 1)",
    ],
)
def test_library_calls_are_found(planted: str) -> None:
    assert list(find_library_calls(ast.parse(planted)))


@pytest.mark.parametrize(
    "planted",
    [
        "if mesh.dtype == tt.bfloat16: pass",
        "y = a if x.dtype == other else b",
        "wide = x.value.dtype is tt.float32",
        "match dtype:\n    case _: pass",
        "scale = {'bfloat16': 1, 'float32': 2}[dtype]",
        "assert mesh.dtype",
        "found = [x for x in xs if x.dtype]",
    ],
)
def test_dtype_branches_are_found(planted: str) -> None:
    assert list(find_dtype_branches(ast.parse(planted)))


@pytest.mark.parametrize(
    "allowed",
    [
        '"""On the emulator it is float32."""',
        'backend: Literal["auto", "ttnn", "emulator"] = "auto"',
        'click.Choice(["auto", "ttnn", "emulator"])',
        "upload(mesh, array, dtype=mesh.dtype, layout=mesh.tt.TILE_LAYOUT)",
        "tiles = mesh.tt.TILE_LAYOUT",
        "facts['dtype'] = str(mesh.dtype)",
    ],
)
def test_allowed_code_is_not_found(allowed: str) -> None:
    tree = ast.parse(allowed)
    rules = (find_emulator_names, find_backend_questions, find_library_calls, find_dtype_branches)
    assert not [node for rule in rules for node in rule(tree)]
