"""JSON that others name is refused by its size and its number of values, before it is parsed."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import save

from cli.tokenize.encoding import Encoder
from services.checkpoints.format import State
from services.checkpoints.hugging_face import open_hugging_face
from services.config.tokenizer_file import parse_tokenizer
from services.corpora.sidecar import parse_sidecar, sidecar_of_copy
from services.errors import Refused
from services.json_text import LAYOUT, TOKENIZER, JsonKind, check_size, parse_json
from services.tensors.layout import Layout

MOST_BYTES = 200 << 20
"""Memory for reading the text below; parsed, it would take 1.2 GB."""
KIND = JsonKind("list", 40, 5)


def bomb(count: int = 13_000_000) -> bytes:
    return b'{"model":[' + b"[]," * count + b"[]]}"


def test_bytes_and_values_are_limited() -> None:
    assert parse_json(b"[1, 2, 3]", KIND) == [1, 2, 3]
    for content, found in (
        (b"[1,2,3,4,5]", "6 values, expected a list of at most 5"),
        (b'{"a":{"b":{}}}', "6 values"),
        (b"[" + b" " * 40, "41 bytes, expected a list of at most 40"),
        (b"[", "Expecting"),
    ):
        with pytest.raises(ValueError, match=found):
            parse_json(content, KIND)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(b"[" * 100_000, LAYOUT)


def test_the_number_of_values_is_never_less_than_there_are() -> None:
    for value in ([], {}, [[], {}], {"a": 1, "b": [2, {"c": None}]}, "text", [1, "a,b", {"x": {"y": [0]}}]):
        content = json.dumps(value).encode()
        count = count_values(value)
        check_size(content, JsonKind("x", 100, 2 * count + 8))
        if count > 1:
            with pytest.raises(ValueError, match="values"):
                check_size(content, JsonKind("x", 100, count - 1))


def count_values(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(1 + count_values(each) for each in value.values())
    return 1 + (sum(map(count_values, value)) if isinstance(value, list) else 0)


def test_the_tokenizer_of_a_large_vocabulary_is_within_the_limits() -> None:
    tokens = [f"token{number:06d}" for number in range(262_144)]
    merges = [[tokens[number % 262_144], tokens[number * 7 % 262_144]] for number in range(514_906)]
    model = {"type": "BPE", "vocab": {token: number for number, token in enumerate(tokens)}, "merges": merges}
    content = json.dumps({"version": "1.0", "model": model}, indent=0).encode()
    assert len(content) > 20 << 20
    check_size(content, TOKENIZER)


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (lambda content, _: State.load(content), "values"),
        (lambda content, _: Layout.loads(content.decode()), "bytes, expected a layout"),
        # the library's own memory is not traced, but it would say something else
        (lambda content, _: parse_tokenizer(content, "t.json"), "values, expected a tokenizer"),
        (lambda content, _: Encoder(content, "t.json", None), "values, expected a tokenizer"),
        (lambda content, _: parse_sidecar(content, "ids.bin"), "values"),
        (lambda content, _: sidecar_of_copy(content, "0" * 64, Path("ids.bin")), "no sidecar"),
    ],
    ids=["state.json", "layout", "tokenizer", "tokenize", "sidecar", "identity"],
)
def test_text_that_grows_when_it_is_parsed_is_refused_before(
    read: Callable[[bytes, Path], object], told: str, tmp_path: Path
) -> None:
    content = bomb()
    tracemalloc.start()
    try:
        with pytest.raises((Refused, ValueError), match=told):
            read(content, tmp_path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MOST_BYTES


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_model_s_files_that_grow_when_they_are_parsed_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "model.safetensors").write_bytes(save({}))
    header = b'{"__metadata__":{' + b",".join(b'"%d":""' % number for number in range(600_000)) + b"}}"
    content = len(header).to_bytes(8, "little") + header if name.endswith("tensors") else bomb(4_000_000)
    (tmp_path / name).write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(Refused) as refused:
            open_hugging_face(tmp_path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MOST_BYTES / 4
    assert name in str(refused.value)
