"""Targets of files of token ids, which people download: YAML, CSV, headers of binaries, sidecars."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from services.corpora.binary_format import read_format
from services.corpora.id_text import IdText
from services.corpora.sidecar import ITEM_BYTES, TokenSidecar, parse_sidecar
from tests.fuzz.target import Target

_YAML = (
    b"{data_length: 3, tokenizer_vocab_size: 9, tokens: [5, 0, 8]}\n",
    b"tokenizer_vocab_size: 9\ndata_length: 3\ntokens:\n- 5\n- 0\n- 8\n",
    b"# ids\n---\ntokens: '5 0\n  8'\n",
)
_CSV = (b"5 0 8\n", b"5,0,\n8")
_SIDECAR = TokenSidecar(
    dtype="uint16",
    offset_bytes=0,
    count=3,
    largest_id=8,
    largest_id_position=2,
    file_bytes=6,
    modified_ns=0,
    sha256="0" * 64,
    block_sha256="0" * 64,
    tokenizer_vocab_size=9,
)


def _id_text(content: bytes, is_yaml: bool) -> None:
    text = IdText(io.BytesIO(content), is_yaml, "ids")
    limit = text.tokenizer_vocab_size or 1 << 32
    for ids in text.pieces():
        assert ids.dtype == np.uint32 and ids.max() < limit


def _binary(content: bytes, suffix: str) -> None:
    found = read_format(io.BytesIO(content), Path(f"ids{suffix}"), len(content), "ids")
    data_bytes = len(content) - found.offset_bytes
    assert data_bytes > 0 and data_bytes % ITEM_BYTES[found.dtype] == 0


def _sidecar(content: bytes) -> None:
    found = parse_sidecar(content, "ids.bin.sidecar.json")
    assert len(found.identity) == 64 and found.offset_bytes < found.file_bytes


def _array(dtype: str) -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(9).astype(dtype))
    return file.getvalue()


CORPORA_TARGETS = {
    "token_yaml": Target(lambda content: _id_text(content, True), _YAML),
    "token_csv": Target(lambda content: _id_text(content, False), _CSV),
    "token_npy": Target(lambda content: _binary(content, ".npy"), (_array("<u2"), _array("<i8"))),
    "token_bin": Target(
        lambda content: _binary(content, ".bin"),
        (
            b"\1\0\2\0",
            np.array([20240520, 1, 2], "<i4").tobytes() + bytes(1012) + b"\1\0\2\0",
            b"PK\3\4" + bytes(8),
        ),
    ),
    "token_sidecar": Target(_sidecar, (_SIDECAR.model_dump_json().encode(),)),
}
"""Targets of files of token ids by name."""
