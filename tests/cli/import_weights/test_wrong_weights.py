"""Files that are no weights of the job's model: one line each, which names the tensor and both shapes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.import_weights.weights_file import MOST_KEYS, open_weights
from cli.main import main
from services.errors import Refused
from tests.cli.import_weights.conftest import GPT2, LLAMA, write_job
from tests.support.tt_train_weights import (
    Float32Array,
    pack_bytes,
    pack_entries,
    pack_integer,
    pack_list,
    pack_map,
    pack_text,
    pair,
    parameter_entries,
    tt_train_parameters,
)

WHOLE = "transformer/transformer/tok_emb/weight/value"
NAME = "transformer/tok_emb/weight"
SHAPE = np.array([1, 1, 2, 3], "<u4").tobytes()
GOOD = {
    f"{WHOLE}/shape": pair(12, pack_bytes(SHAPE)),
    f"{WHOLE}/data_type": pair(2, pack_integer(0)),
    f"{WHOLE}/data": pair(10, pack_list(6) + bytes(range(6))),
}
CONTENT = pack_entries(GOOD)


def changed(key: str, value: bytes) -> bytes:
    return pack_entries(GOOD | {f"{WHOLE}/{key}": value})


FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "ends within a value at byte 0"),
    "cut": (CONTENT[:-3], "so it is cut off; copy it again"),
    "pickle": (b"\x80\x04\x95\x10", "a map of 0 keys, expected 1 to"),
    "zip": (b"PK\x03\x04", "is no file of tt-train's weights (byte 0"),
    "text": (b"hello", "is no file of tt-train's weights (byte 0"),
    "more": (CONTENT + b"\0", "1 bytes follow the map of weights"),
    "many keys": (b"\xdf\xff\xff\xff\xff", f"a map of 4294967295 keys, expected 1 to {MOST_KEYS}"),
    "huge key": (pack_map(1) + b"\xdb\xff\xff\xff\xff" + b"x" * 99, "ends within a value at byte 6"),
    "long key": (pack_map(1) + pack_text("x" * 600) + b"\x92\0\0", "600 exceeds max_str_len"),
    "huge text": (pack_map(1) + b"\xdb\xff\xff\xff\xff" + bytes(2 << 20), ": BufferFull); give a .msgpack"),
    "key is a huge list": (pack_map(1) + b"\xdd\xff\xff\xff\xff", "exceeds max_array_len"),
    "key is deep": (pack_map(1) + b"\x91" * 10_000, "is no file of tt-train's weights"),
    "key is a number": (pack_map(1) + b"\x05\x92\0\0", "a key that is a int, expected text"),
    "key is no UTF-8": (pack_map(1) + b"\xa1\xff\x92\0\0", "is no file of tt-train's weights"),
    "value is deep": (pack_map(1) + pack_text("a") + b"\x92\0" + b"\x91" * 10_000 + b"\0", "(byte "),
    "value is no pair": (pack_map(1) + pack_text("a") + b"\x93\0\0\0", "a has no pair of a type and a value"),
    "huge list": (changed("data", b"\x92\x0a\xdd\xff\xff\xff\xff\0"), "so it is cut off"),
    "huge bytes": (changed("shape", b"\x92\x0c\xc6\xff\xff\xff\xff\0"), "so it is cut off"),
    "long shape": (changed("shape", pair(12, pack_bytes(bytes(36)))), "has 36 bytes as shape"),
    "huge unknown bytes": (changed("layout", b"\x92\x0c\xc6\xff\xff\xff\xff\0"), "so it is cut off"),
    "unknown type": (changed("layout", b"\x92\x0c\xc1"), "no file of tt-train's weights"),
    "shape is text": (changed("shape", pair(7, pack_text("1"))), "has a str as shape, expected 4 bytes for each"),
    "shape is cut": (changed("shape", pair(12, pack_bytes(SHAPE[:5]))), "has 5 bytes as shape"),
    "shape is empty": (changed("shape", pair(12, pack_bytes(b""))), "has 0 bytes as shape"),
    "uint32": (changed("data_type", pair(2, pack_integer(2))), "has data_type 2, expected one of 0 (bfloat16), 1"),
    "data_type is deep": (changed("data_type", b"\x92\x02" + b"\x91" * 10_000), "exceeds max_array_len"),
    "no data": (pack_entries({key: GOOD[key] for key in [*GOOD][:2]}), f"tensor {NAME} has no data, expected"),
    "no shape": (pack_entries({key: GOOD[key] for key in [*GOOD][2:]}), f"tensor {NAME} has no shape, expected"),
}  # fmt: skip
DATA: dict[str, tuple[bytes, str]] = {
    "too few": (pack_list(5) + bytes(5), "has 5 as data, expected a list of 6 by its shape [1, 1, 2, 3]"),
    "no list": (pack_bytes(b"123456"), "has no list as data, expected a list of 6"),
    "texts": (pack_list(6) + b"\xa11" * 6, "has something else than numbers at position 0 or later"),
    "nil": (pack_list(6) + bytes(5) + b"\xc0", "has something else than numbers"),
    "true": (pack_list(6) + bytes(5) + b"\xc3", "has something else than numbers"),
    "lists": (pack_list(6) + b"\x91\x01" * 6, "has something else than numbers"),
    "deep": (pack_list(6) + bytes(5) + b"\x91" * 400 + b"\0", "has something else than numbers"),
    "long texts": (pack_list(6) + b"\xd9\x64" * 1 + b"x" * 100 + bytes(5), "something else than numbers"),
}


def refusal(path: Path) -> str:
    with pytest.raises(Refused) as refused, open_weights(path) as file:
        for name in file.shapes:
            file.read(name)
    line = str(refused.value)
    assert line.isprintable() and len(line) <= 320
    return line


@pytest.mark.parametrize("kind", FILES)
def test_files_that_are_none(tmp_path: Path, kind: str) -> None:
    content, expected = FILES[kind]
    (tmp_path / "m.msgpack").write_bytes(content)
    assert expected in refusal(tmp_path / "m.msgpack")


@pytest.mark.parametrize("kind", DATA)
def test_data_that_is_none(tmp_path: Path, kind: str) -> None:
    content, expected = DATA[kind]
    (tmp_path / "m.msgpack").write_bytes(changed("data", pair(10, content)))
    assert f"tensor {NAME} {expected}" in refusal(tmp_path / "m.msgpack") or expected in refusal(
        tmp_path / "m.msgpack"
    )


@given(st.binary(max_size=80), st.integers(0, len(CONTENT)), st.integers(0, 20))
def test_any_bytes_are_weights_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, inserted: bytes, position: int, dropped: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.msgpack"
    path.write_bytes(CONTENT[:position] + inserted + CONTENT[position + dropped :])
    try:
        with open_weights(path) as file:
            for name, shape in file.shapes.items():
                assert file.read(name).shape == shape
    except Refused as refused:
        assert str(refused).isprintable() and len(str(refused)) <= 320


def test_a_huge_shape_takes_no_memory(tmp_path: Path) -> None:
    shape = struct.pack("<4I", *(4 * [2**32 - 1]))
    (tmp_path / "m.msgpack").write_bytes(changed("shape", pair(12, pack_bytes(shape))))
    assert "has 6 as data, expected a list of 3402823" in refusal(tmp_path / "m.msgpack")


@pytest.fixture
def weights() -> dict[str, Float32Array]:
    """Return the parameters of a small GPT-2 with the vocabulary of the job's text, 21 tokens."""
    width = 64
    tensors: dict[str, Float32Array] = {
        "transformer.wte.weight": np.full((21, width), 0.5, np.float32),
        "transformer.wpe.weight": np.full((32, width), 0.5, np.float32),
        "lm_head.weight": np.full((21, width), 0.5, np.float32),
    }
    for block in range(2):
        for layer, shape in {
            "ln_1": (width,), "ln_2": (width,), "attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width),
            "mlp.c_fc": (width, 4 * width), "mlp.c_proj": (4 * width, width),
        }.items():  # fmt: skip
            tensors[f"transformer.h.{block}.{layer}.weight"] = np.full(shape, 0.5, np.float32)
            tensors[f"transformer.h.{block}.{layer}.bias"] = np.full(shape[-1], 0.5, np.float32)
    for leaf in ("weight", "bias"):
        tensors[f"transformer.ln_f.{leaf}"] = np.full(width, 0.5, np.float32)
    return tt_train_parameters(tensors, 2, 0)


@pytest.fixture
def line_of(
    tmp_path: Path, weights: dict[str, Float32Array], capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Return a function that imports the parameters, changed, for a job's model, and returns the refusal."""

    def line(model: dict[str, object], *settings: str, prefix: str = "transformer") -> str:
        (tmp_path / "m.msgpack").write_bytes(pack_entries(parameter_entries(prefix, weights)))
        job = write_job(tmp_path, model)
        before = set(tmp_path.iterdir())
        code = main(
            ["import-weights", str(tmp_path / "m.msgpack"), str(job), *settings, "-o", str(tmp_path / "out")]
        )
        assert (code, set(tmp_path.iterdir())) == (2, before)
        text = capsys.readouterr().err.splitlines()[-1]
        assert text.isprintable() and len(text) <= 320
        return text

    return line


def test_a_model_that_differs(weights: dict[str, Float32Array], line_of: Callable[..., str]) -> None:
    assert (
        "tensor transformer/pos_emb/weight has shape [1, 1, 32, 64], expected [1, 1, 64, 64] by the job's model; give "
        "the config that the weights were trained with"
    ) in line_of(GPT2, "max_sequence_length=64")
    assert (
        "no tensor transformer/gpt_block_2/ln1/gamma, expected shape [1, 1, 1, 64] by the job's model; give the config"
    ) in line_of(GPT2, "num_blocks=3")
    assert (
        "has tensor transformer/gpt_block_1/attention/out_linear/bias of shape [1, 1, 1, 64], expected only those of "
        "the job's model; give the config"
    ) in line_of(GPT2, "num_blocks=1")
    assert "has tensor transformer/fc/weight of shape [1, 1, 32, 64], expected only those of the job's model; write " \
        "weight_tying: disabled, or give" in line_of(GPT2, "weight_tying=enabled")  # fmt: skip
    assert "has tensor transformer/tok_emb/weight, expected those of the job's model, a llama" in line_of(
        LLAMA
    )
    assert (
        "m.msgpack: no weights of a GPT-2 or a Llama, expected keys that begin with transformer/"
        in line_of(GPT2, prefix="bert")
    )
    weights["transformer/fc/bias"] = np.full(32, 0.5, np.float32)
    assert "tensor transformer/fc/bias of shape [1, 1, 1, 32] is not zero, expected none" in line_of(GPT2)
    del weights["transformer/fc/bias"], weights["transformer/fc/weight"]
    assert "no tensor transformer/fc/weight, expected shape [1, 1, 21, 64] by the job's model; write weight_tying: " \
        "enabled, or give" in line_of(GPT2)  # fmt: skip
    del weights["transformer/tok_emb/weight"]
    assert (
        "no tensor transformer/fc/weight, expected shape [1, 1, 21, 64] by the job's model; give the config"
        in (line_of(GPT2, "weight_tying=enabled"))
    )


@pytest.mark.parametrize("rows", [20, 22, 31, 33, 64])
def test_a_vocabulary_that_is_no_padded_one(
    weights: dict[str, Float32Array], line_of: Callable[..., str], rows: int
) -> None:
    weights["transformer/tok_emb/weight"] = np.zeros((rows, 64), np.float32)
    assert f"tok_emb/weight has shape [1, 1, {rows}, 64], expected [1, 1, 21, 64]" in line_of(GPT2)


def test_wrong_options(
    tmp_path: Path, job_file: Path, weights: dict[str, Float32Array], capsys: pytest.CaptureFixture[str]
) -> None:
    def line(*arguments: object) -> str:
        assert main(["import-weights", *map(str, arguments)]) == 2
        return capsys.readouterr().err.splitlines()[-1]

    out = tmp_path / "out"
    assert f"--output: {tmp_path}: exists" in line("m", job_file, "-o", tmp_path)
    assert "its parent folder is missing" in line("m", job_file, "-o", out / "deeper")
    assert "model_type: linear_regression given, expected gpt2 or llama" in line("m", job_file, "-o", out)
    text_job = write_job(tmp_path, GPT2)
    assert "m.msgpack: no such file" in line(tmp_path / "m.msgpack", text_job, "-o", out)
    assert "is a folder, expected a regular file" in line(tmp_path, text_job, "-o", out)
    (tmp_path / "m.msgpack").write_bytes(pack_entries(parameter_entries("transformer", weights)))
    assert main(["import-weights", str(tmp_path / "m.msgpack"), str(text_job), "-o", str(out)]) == 0
    settings = [f"transformer_config.model_path={out}", "transformer_config.vocab_size=21"]
    assert "transformer_config.model_path: given, expected a config without it" in line(
        tmp_path / "m.msgpack", text_job, *settings, "-o", tmp_path / "again"
    )
    assert json.loads((out / "config.json").read_text())["vocab_size"] == 21
