"""Any contents of tokenizer.json either give a tokenizer or are refused in one line."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.errors import Refused
from tests.support.anything import is_one_line
from training.data.tokenizer import load_tokenizer

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 1 << 40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
MODELS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["BPE", "WordLevel", "Unigram", "X"]),
        "vocab": st.dictionaries(st.text(max_size=2), st.integers(-1, 9)) | VALUES,
    },
    optional={"merges": VALUES, "unk_token": VALUES},
)
FIELDS = st.fixed_dictionaries(
    {"version": st.just("1.0"), "model": MODELS | VALUES},
    optional=dict.fromkeys(("added_tokens", "normalizer", "pre_tokenizer", "decoder", "truncation"), VALUES),
)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=30) | FIELDS.map(lambda fields: json.dumps(fields).encode()))
@example(b"[" * 100_000)
def test_any_tokenizer(content: Any) -> None:
    try:
        load_tokenizer(content, "tokenizer.json")
    except Refused as error:
        assert is_one_line(error)
