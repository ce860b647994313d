"""JSON from a file that a person, a job or a peer names, with a limit for each kind before it is parsed.

A limit of bytes is not enough: 39 MB of `[],` take 1.2 GB once parsed. So the number of values is limited too. It is
counted in the text, where each value but the first follows one of `[`, `{`, `,` and `:`. A value takes up to some 100
bytes of memory.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_BEFORE_VALUES = (b"[", b"{", b",", b":")


@dataclass(frozen=True)
class JsonKind:
    """What may be parsed of one kind of file.

    Attributes:
        name: noun phrase for errors.
        limit_bytes: largest file.
        most_values: largest number of values; those characters within texts count too.
    """

    name: str
    limit_bytes: int
    most_values: int


TOKENIZER = JsonKind("tokenizer", 64 << 20, 4_000_000)
"""`tokenizer.json`: one of 262,000 tokens has some 35 MB and 2.2 million values."""
CHECKPOINT_STATE = JsonKind("state.json", 64 << 20, 1_000_000)
LAYOUT = JsonKind("layout", 8 << 20, 500_000)
"""Layout of a model: each of at most 32,768 entries takes about 15 values and 256 bytes. A worker's text
takes at most 40 MB once parsed."""
MODEL_CONFIG = JsonKind("config of a model", 16 << 20, 1_000_000)
"""`config.json`, and the index of a model in several files."""
TENSOR_HEADER = JsonKind("safetensors header", 16 << 20, 1_000_000)
"""Header of a safetensors file: a tensor takes about 10 values."""
TOKEN_SIDECAR = JsonKind("sidecar of a token file", (64 << 20) + 4096, 100)
"""Nearly all of it is one text, the hashes of the blocks."""


def check_size(content: bytes, kind: JsonKind) -> None:
    """Check that JSON text stays within the limits of its kind, without parsing it.

    Raises:
        ValueError: it does not; says what was found.
    """
    if len(content) > kind.limit_bytes:
        raise ValueError(f"{len(content)} bytes, expected a {kind.name} of at most {kind.limit_bytes}")
    values = 1 + sum(map(content.count, _BEFORE_VALUES))
    if values > kind.most_values:
        raise ValueError(f"{values} values, expected a {kind.name} of at most {kind.most_values}")


def parse_json(content: bytes, kind: JsonKind) -> Any:
    """Return the value in JSON text.

    Raises:
        ValueError: it is beyond the limits of its kind, or no JSON; says what is wrong.
    """
    check_size(content, kind)
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None
