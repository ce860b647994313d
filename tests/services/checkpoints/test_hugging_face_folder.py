"""Tests of reading tensors from a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from services.checkpoints.hugging_face import open_hugging_face
from services.errors import Refused

BITS = np.random.Generator(np.random.PCG64(3)).integers(0, 2**16, (5, 7), np.uint16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tensors = {
        "single": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": BITS.view(np.float16),
        "brain": BITS.view(ml_dtypes.bfloat16),
        "none": np.zeros((0, 3), np.float32),
        "scalar": np.array(2.5, np.float32),
        "count": np.arange(3),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    return tmp_path


def test_every_weight_dtype_becomes_float32_exactly(folder: Path) -> None:
    opened = open_hugging_face(folder)
    assert sorted(opened.tensors) == ["brain", "count", "half", "none", "scalar", "single"]
    for name, expected in {
        "single": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": BITS.view(np.float16).astype(np.float32),
        "brain": BITS.view(ml_dtypes.bfloat16).astype(np.float32),
        "none": np.zeros((0, 3), np.float32),
        "scalar": np.array(2.5, np.float32),
    }.items():
        found = opened.read(name)
        assert (found.dtype, found.shape) == (np.float32, expected.shape)
        assert np.array_equal(found, expected, equal_nan=True)


def test_float32_is_mapped_not_copied(folder: Path) -> None:
    values = open_hugging_face(folder).read("single")
    base: object = values
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    assert not values.flags.writeable


def test_other_dtypes_and_missing_tensors_are_refused(folder: Path) -> None:
    opened = open_hugging_face(folder)
    with pytest.raises(Refused, match=r"count has dtype I64.*F32, F16, BF16"):
        opened.read("count")
    with pytest.raises(Refused, match="no tensor gone"):
        opened.read("gone")
    with pytest.raises(Refused, match=r"no such folder.*config\.json"):
        open_hugging_face(folder / "gone")
