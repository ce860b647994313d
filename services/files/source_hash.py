"""Hashes of code, by which workers tell whether they would compute the same."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable


def hash_source(source: bytes) -> str:
    """Return the SHA-256 of a Python file's syntax tree without docstrings; of its bytes if it has none."""
    try:
        text = _describe(_without_docstrings(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return hashlib.sha256(source).hexdigest()
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def combine_hashes(hashes: Iterable[tuple[str, str]]) -> str:
    """Return one SHA-256 of named hashes, in their order."""
    digest = hashlib.sha256()
    for name, value in hashes:
        digest.update(f"{name}\0{value}\n".encode())
    return digest.hexdigest()


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
