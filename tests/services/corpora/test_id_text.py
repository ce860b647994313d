"""Token ids in YAML and CSV: what is accepted means what PyYAML says, and all else is refused by line."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from services.corpora import id_text
from services.corpora.id_text import IdText
from services.errors import Refused
from services.printable import LINE_CHARACTERS

IDS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=60)


def read(text: str | bytes, is_yaml: bool = True) -> tuple[list[int], int | None]:
    content = text.encode() if isinstance(text, str) else text
    found = IdText(io.BytesIO(content), is_yaml, "ids.yaml")
    return np.concatenate([*found.pieces()]).tolist(), found.tokenizer_vocab_size


def refusal(text: str | bytes, is_yaml: bool = True) -> str:
    with pytest.raises(Refused) as refused:
        read(text, is_yaml)
    return str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "{data_length: 3, tokenizer_vocab_size: 9, tokens: [5, 0, 8]}\n",
        "{data_length: 3, tokenizer_vocab_size: 9,\n  tokens: [5,\n    0, 8]}",
        '{"tokenizer_vocab_size": 9, "data_length": 3, "tokens": [5, 0, 8]}',
        "{tokenizer_vocab_size: 9, tokens: 5 0\n    8}\n",
        "tokenizer_vocab_size: 9\ndata_length: 3\ntokens: [5, 0, 8]\n",
        "# ids\n---\ndata_length: 3  # of them\ntokenizer_vocab_size: 9\ntokens: [5, 0,\n8,]\n\n",
        "tokenizer_vocab_size: 9\ntokens:\n- 5\n- 0\n- 8\n",
        "tokenizer_vocab_size: 9\r\ntokens:\r\n  - 5\r\n  - 0\r\n  - 8",
        "tokenizer_vocab_size: 9\ntokens: 5 0 8\n",
        "tokenizer_vocab_size: 9\ntokens: '5 0\n  8'\n",
        '\ufefftokenizer_vocab_size: 9\ntokens: "5 0 8"\n',
    ],
)
def test_forms_of_yaml(text: str) -> None:
    assert read(text) == ([5, 0, 8], 9)


@pytest.mark.parametrize("text", ["5 0 8", "5 0 8\n", "5,0,8\n", " 5, 0,\n8,\n", "5\n0\n8\n", "5\t0 ,8\r\n"])
def test_forms_of_csv(text: str) -> None:
    assert read(text, is_yaml=False) == ([5, 0, 8], None)


@given(IDS, st.sampled_from([True, False, None]), st.integers(8, 200), st.booleans())
def test_what_pyyaml_writes_is_read(ids: list[int], flow: bool | None, width: int, as_text: bool) -> None:
    tokens = " ".join(map(str, ids)) if as_text else ids
    record = {"tokenizer_vocab_size": 2**32, "data_length": len(ids), "tokens": tokens}
    text = yaml.safe_dump(record, default_flow_style=flow, width=width)
    assert read(text) == (ids, 2**32)


@given(
    st.lists(
        st.sampled_from(
            [
                "tokens:",
                "data_length:",
                " ",
                "\n",
                "- ",
                "[",
                "]",
                "{",
                "}",
                ",",
                "0",
                "7",
                "12",
                "'",
                "#",
                "-",
            ]
        ),
        max_size=30,
    ).map("".join)
)
def test_what_is_read_means_the_same_to_pyyaml(text: str) -> None:
    try:
        ids, _ = read(text)
    except Refused as refused:
        assert str(refused).isprintable() and len(str(refused)) <= LINE_CHARACTERS
        return
    tokens = yaml.safe_load(text)["tokens"]
    assert ids == (list(map(int, str(tokens).split())) if isinstance(tokens, str | int) else tokens)


@given(IDS, st.integers(1, 40), st.sampled_from(["[{}]", "- {}", "{}"]))
def test_pieces_of_any_size_give_the_same_ids(ids: list[int], piece_bytes: int, form: str) -> None:
    separator = {"[{}]": ", ", "- {}": "\n- ", "{}": " "}[form]
    first = "\n" if form == "- {}" else " "
    text = f"tokens:{first}{form.format(separator.join(map(str, ids)))}\n"

    class Slow(io.BytesIO):
        head = True

        def read(self, size: int | None = -1, /) -> bytes:
            size_bytes = 24 if self.head else piece_bytes
            self.head = False
            return super().read(size_bytes)

    found = IdText(Slow(text.encode()), True, "ids.yaml")
    assert np.concatenate([*found.pieces()]).tolist() == ids


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_ids_or_one_line(content: bytes, is_yaml: bool) -> None:
    try:
        read(content, is_yaml)
    except Refused as refused:
        assert str(refused).isprintable() and len(str(refused)) <= LINE_CHARACTERS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "line 1: its end found"),
        ("tokens: []\n", "ids"),
        ("tokens: [5, 0", "ends without ], so it is cut off"),
        ("{tokens: [5, 0]\n", "ids"),
        ("tokens: [5, -1, 7]", "line 1: '-1,' found"),
        ("tokens: [5, 1.5, 7]", "line 1: '1.5,' found"),
        ("tokens: [5, 017, 7]", "'017,' found"),
        ("tokens:\n- 5\n- 6\n- x\n- 7\n", "line 4: 'x' found"),
        ("tokens:\n- 5\n  - 6\n", "found"),
        ("tokens: [5]\nmore: 7\n", "found"),
        ("tokenizer_vocab_size: 9\ntokens: [5, 9, 10]\n", "id 9 at position 1, expected ids below 9"),
        ("tokens: [5, 4294967296]\n", "id 4294967296 at position 1"),
        ("data_length: 3\ntokens: [5, 0]\n", "has 2 ids, its data_length says 3"),
        ("tokenizer_vocab_size: 0\ntokens: [5]\n", "tokenizer_vocab_size: 0, expected 1 to"),
        ("data_length: 1\ndata_length: 1\ntokens: [5]\n", "line 2: 'data_length:' found"),
        ("training_config:\n  seed: 1\n", "line 1: 'training_config:' found, expected a file of token ids"),
    ],
)
def test_refusals(text: str, expected: str) -> None:
    assert expected in refusal(text)


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "1,,2", ",1", "1;2", "-1 2", "1.0 2", "", "\n"])
def test_refusals_of_csv(text: str) -> None:
    assert "line " in refusal(text, is_yaml=False)


def test_garbage_is_refused_before_all_of_it_is_read() -> None:
    class Pieces(io.BytesIO):
        left = 3

        def read(self, size: int | None = -1, /) -> bytes:
            assert self.left, "read on"
            self.left -= 1
            return super().read(size) or b"z" * (size or 0)

    text = IdText(Pieces(b"tokens: 1 2 "), True, "ids.yaml")
    with pytest.raises(Refused, match="'zzz"):
        list(text.pieces())


def test_a_place_far_into_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_text, "PIECE_BYTES", 1000)
    lines = "".join(f"- {number}\n" for number in range(3000))
    assert "line 3002: 'x' found" in refusal(f"tokens:\n{lines}- x\n")
    beyond = refusal(f"tokenizer_vocab_size: 3000\ntokens:\n{lines}- 3000\n")
    assert re.search("id 3000 at position 3000,", beyond)
    assert "found" in refusal(f"tokens:\n{lines}" + "z" * 100_000)
