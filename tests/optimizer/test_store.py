"""The file of the highest generation: a number, or refused in one line that names the file."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from optimizer.store import JobStore
from services.errors import Refused
from services.plan import LAST_GENERATION
from tests.anything import is_told_in_one_line


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=20) | st.integers().map(lambda number: str(number).encode()))
@example(content=b"9" * 5000)
@example(content=str(LAST_GENERATION + 1).encode())
@example(content=b"-1")
def test_any_generation_file(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    root = tmp_path_factory.getbasetemp() / "store"
    (root / "a").mkdir(parents=True, exist_ok=True)
    (root / "a" / "generation").write_bytes(content)
    try:
        assert 0 <= JobStore(root).generation("a") <= LAST_GENERATION
    except Refused as error:
        assert is_told_in_one_line(error)
        assert str(root / "a" / "generation") in str(error)
