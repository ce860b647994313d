"""The examples that hypothesis draws are those of the test alone, whatever else its process has run before."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def draw_examples() -> list[list[int]]:
    """Return the examples of a test."""
    drawn: list[list[int]] = []

    @settings(max_examples=50, derandomize=True)
    @given(st.lists(st.integers(), min_size=20, max_size=20))
    def keep(numbers: list[int]) -> None:
        drawn.append(numbers)

    keep()
    return drawn


def test_examples_do_not_depend_on_the_modules_that_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = draw_examples()
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "module_with_constants"
    (tmp_path / f"{name}.py").write_text("".join(f"A{each} = {10_000_019 + each}\n" for each in range(500)))
    importlib.import_module(name)
    try:
        assert draw_examples() == before
    finally:
        del sys.modules[name]
