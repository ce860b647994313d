"""Tests that parsing YAML takes bounded work, whatever a text of bounded length says."""

from __future__ import annotations

import pytest

from services.errors import Refused
from services.yaml_text import YAML_BYTES, YAML_DEPTH, YAML_NODES, YAML_SCALAR_CHARACTERS, parse_yaml
from tests.support.processor_time import limit_work

LAUGHS = "a0: &a0 [lol]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 40)
)
MERGES = "a0: &a0 {k: v}\n" + "".join(
    f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}\n" for level in range(1, 40)
)
FILL = YAML_BYTES - 2


def filled(piece: str, start: str = "", stop: str = "") -> str:
    """Return as many copies of a piece as a text may have."""
    return start + piece * ((FILL - len(start) - len(stop)) // len(piece)) + stop


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (LAUGHS, f"more than {YAML_NODES} values"),
        (MERGES, f"more than {YAML_NODES} values"),
        ("a: &a [*a]", "contains itself"),
        ("a: &a {<<: *a}", "contains itself"),
        ("a: &a\n  b: &b [*a]\n  c: *b", "contains itself"),
        ("[" * 100_000, f"more than {YAML_DEPTH} deep"),
        ("- " * 100_000, f"more than {YAML_DEPTH} deep"),
        ("x" * (YAML_SCALAR_CHARACTERS + 1), f"more than {YAML_SCALAR_CHARACTERS} characters"),
        ("1" + ":1" * 100_000, "characters"),  # a number with base 60, whose value takes quadratic time
        (filled("a, ", "[", "]"), "values"),
        (filled("? "), "deep"),
        ("a" * (YAML_BYTES + 1), f"expected at most {YAML_BYTES}"),
    ],
    ids=lambda text: repr(text[:30]),
)
def test_what_exceeds_a_bound_is_refused_after_bounded_work(text: str, problem: str) -> None:
    with limit_work(20), pytest.raises(Refused) as refused:
        parse_yaml(text, "job.yaml")
    assert problem in str(refused.value)
    assert str(refused.value).isprintable() and len(str(refused.value)) <= 300


@pytest.mark.parametrize(
    "text",
    [
        *(
            filled(piece)
            for piece in ("#\n", " ", "\n", "a\n", "a ", "\t", "---\n", "%A\n", "\x00", "\ufeff")
        ),
        filled("\\n", '"', '"'),
        filled("''", "'", "'"),
        filled(" a\n", "a: |\n"),
        filled(" a\n", "a: >\n"),
        filled("%41", "!<", "> b"),
        filled("a", "&", " b"),
        filled("a", "!", " b"),
        filled("? ", "{"),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_any_text_takes_bounded_time(text: str) -> None:
    with limit_work(20):
        try:
            parse_yaml(text, "job.yaml")
        except Refused as refused:
            assert str(refused).isprintable() and len(str(refused)) <= 300


def test_aliases_and_merges_within_the_bounds_are_expanded() -> None:
    text = "base: &base {lr: 3e-4, betas: [0.9, 0.95]}\nown: {<<: *base, lr: 1e-3}\nagain: *base"
    base = {"lr": 3e-4, "betas": [0.9, 0.95]}
    assert parse_yaml(text, "job.yaml") == {"base": base, "own": {**base, "lr": 1e-3}, "again": base}
    assert len(parse_yaml("[" + "a," * (YAML_NODES - 2) + "]", "job.yaml")) == YAML_NODES - 2
