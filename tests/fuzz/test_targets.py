"""The targets of `make fuzz` accept their seeds and any other bytes; this runs without atheris."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, Target


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_bytes(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    seed = data.draw(st.sampled_from(target.seeds))
    cut = data.draw(st.integers(0, len(seed)))
    target.run(seed[:cut] + data.draw(st.binary(max_size=20)) + seed[cut:])
    target.run(data.draw(st.binary(max_size=200)))


def test_a_refusal_of_several_lines_is_found() -> None:
    def parse(content: bytes) -> None:
        raise ValueError("one\ntwo")

    with pytest.raises(AssertionError):
        Target(parse, ()).run(b"")
