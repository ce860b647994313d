"""The hash of a Python file: what changes it, and what doesn't."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from services.files.source_hash import hash_source

ROOT = Path(__file__).resolve().parents[3]

BASE = b'''
"""A module."""
EPSILON = 1e-5
"""Added."""

def f(x: float) -> float:
    """Return it."""
    return x * 2  # twice
'''


@pytest.mark.parametrize(
    "source",
    [
        BASE.replace(b"# twice", b"# two times"),
        BASE.replace(b'"""A module."""', b""),
        BASE.replace(b'    """Return it."""\n', b""),
        BASE.replace(b'"""Added."""', b'"""Added to the variance."""'),
        BASE.replace(b"x * 2", b"(x  *  2)"),
        BASE.replace(b"\n", b"\r\n"),
        b"\n\n\n" + BASE,
        BASE.replace(b"1e-5", b"0.00001"),
    ],
)
def test_comments_docstrings_and_formatting_do_not_count(source: bytes) -> None:
    assert hash_source(source) == hash_source(BASE)


@pytest.mark.parametrize(
    "source",
    [
        BASE.replace(b"1e-5", b"1e-6"),
        BASE.replace(b"x * 2", b"2 * x"),
        BASE.replace(b"x * 2", b"x * 2.0"),
        BASE.replace(b"x * 2", b"x * True"),
        BASE.replace(b"return x", b"return -x"),
        BASE + b"\nimport math\n",
        b"no python (",
    ],
)
def test_what_computes_counts(source: bytes) -> None:
    assert hash_source(source) != hash_source(BASE)


def test_every_kind_of_statement_is_told_apart() -> None:
    """Each change of one constant or operator anywhere in the code that computes gives another hash."""
    source = (ROOT / "mesh/emulator/softmax.py").read_text()
    tree = ast.parse(source)
    numbers = [
        each for each in ast.walk(tree) if isinstance(each, ast.Constant) and type(each.value) in (int, float)
    ]
    assert numbers
    for each in numbers:
        value, each.value = each.value, each.value + 1
        assert hash_source(ast.unparse(tree).encode()) != hash_source(source.encode())
        each.value = value
    assert hash_source(ast.unparse(tree).encode()) == hash_source(source.encode())
