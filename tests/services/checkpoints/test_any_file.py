"""Tests that files of any content, with right checksums, are read as a checkpoint or refused in one line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.checkpoints.hugging_face import open_hugging_face
from services.checkpoints.read import (
    read_checkpoint,
)
from services.config.pretrained import open_pretrained
from services.errors import Refused
from tests.services.checkpoints.test_damage import rewrite_state, write
from tests.support.anything import is_one_line

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
TENSOR = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F64", "BF16", "F16", "I64", "F8_E4M3", "BOOL", "U8", "X"]) | VALUES,
        "shape": st.just([4])
        | st.lists(st.sampled_from([0, 1, 2, 4, 8, 1 << 40, 1 << 63]), max_size=3)
        | VALUES,
        "data_offsets": st.sampled_from([[0, 16], [0, 8], [0, 4], [0, 32], [16, 0], [0, 1 << 63]]) | VALUES,
    }
)
HEADERS = st.dictionaries(st.sampled_from(["a", "b", "__metadata__", "\n\x1b"]), TENSOR | VALUES, max_size=3)


def safetensors(header: Any) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(16)


FILES = HEADERS.map(safetensors) | st.binary(max_size=40)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("any"), 5).path


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(["optimizer.safetensors", "model.safetensors"]), content=FILES)
@example(
    "optimizer.safetensors", safetensors({"a": {"dtype": "BF16", "shape": [8], "data_offsets": [0, 16]}})
)
@example("optimizer.safetensors", b"\xff" * 16)
def test_any_tensors_are_read_or_refused(intact: Path, name: str, content: bytes) -> None:
    original, state = (intact / name).read_bytes(), (intact / "state.json").read_bytes()
    (intact / name).write_bytes(content)
    record = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    rewrite_state(intact, lambda values: values["files"].update({name: record}))
    try:
        assert read_checkpoint(intact).optimizer_state is not None
    except Refused as error:
        assert is_one_line(error)
    finally:
        (intact / name).write_bytes(original)
        (intact / "state.json").write_bytes(state)


FIELDS = st.sampled_from(["format", "job", "generation", "step", "config", "layout", "files", "more"])


@settings(max_examples=150, deadline=None)
@given(changed=st.dictionaries(FIELDS, VALUES, max_size=2))
def test_any_state_is_read_or_refused(intact: Path, changed: dict[str, Any]) -> None:
    state = (intact / "state.json").read_bytes()
    rewrite_state(intact, lambda values: values.update(changed))
    try:
        for read in (read_checkpoint, open_pretrained):
            try:
                read(intact)
            except Refused as error:
                assert is_one_line(error)
    finally:
        (intact / "state.json").write_bytes(state)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"9" * 5000, b"\xff", b"null", b'{"format": 1}'])
def test_state_of_arbitrary_bytes_is_refused(intact: Path, content: bytes) -> None:
    state = (intact / "state.json").read_bytes()
    (intact / "state.json").write_bytes(content)
    try:
        for read in (read_checkpoint, open_pretrained):
            with pytest.raises(Refused) as refused:
                read(intact)
            assert is_one_line(refused.value)
    finally:
        (intact / "state.json").write_bytes(state)


@settings(max_examples=150, deadline=None)
@given(
    config=st.dictionaries(st.sampled_from(["model_type", "n_embd", "n_layer", "vocab_size", "x"]), VALUES),
    model=FILES,
    index=st.none() | st.fixed_dictionaries({"weight_map": VALUES | st.just({"a": "part.safetensors"})}),
)
def test_any_hugging_face_folder_is_opened_or_refused(
    tmp_path_factory: pytest.TempPathFactory, config: Any, model: bytes, index: Any
) -> None:
    folder = tmp_path_factory.getbasetemp() / "hugging-face"
    folder.mkdir(exist_ok=True)
    for each in folder.iterdir():
        each.unlink()
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **config}))
    (folder / ("model.safetensors" if index is None else "part.safetensors")).write_bytes(model)
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for read in (open_hugging_face, open_pretrained):
        try:
            read(folder)
        except Refused as error:
            assert is_one_line(error)
