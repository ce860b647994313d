"""Tests that corpora and tokenizers have the sha256 that the job names, or are refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from services.config.corpus import PYTHON_REFERENCE, python_reference_text, read_text, read_tokenizer
from services.config.job_parts import CorpusFile, DataConfig
from services.errors import Refused


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_the_built_in_text_is_english_and_long() -> None:
    assert len(python_reference_text()) > 300_000
    assert 'The "try" statement' in python_reference_text()
    assert python_reference_text() == python_reference_text()


def test_the_built_in_text_is_verified() -> None:
    data = CorpusFile(path=PYTHON_REFERENCE, sha256=sha256(python_reference_text().encode()))
    assert read_text(data) == python_reference_text()
    with pytest.raises(Refused, match="Python version"):
        read_text(CorpusFile(path=PYTHON_REFERENCE, sha256="0" * 64))


def test_a_corpus_is_read_from_its_path_or_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("née")
    digest = sha256("née".encode())
    assert read_text(CorpusFile(path=str(tmp_path / "c.txt"), sha256=digest)) == "née"
    elsewhere = CorpusFile(path="/of/another/host/c.txt", sha256=digest)
    assert read_text(elsewhere, tmp_path) == "née"
    with pytest.raises(Refused, match=r"data_path: .*/of/another/host/c.txt\)"):
        read_text(elsewhere)


def test_a_corpus_with_another_sha256_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("other")
    with pytest.raises(Refused, match=f"c.txt has sha256 {sha256(b'other')[:16]}.*{'0' * 16}"):
        read_text(CorpusFile(path=str(tmp_path / "c.txt"), sha256="0" * 64))


def test_a_corpus_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_bytes(b"ab\xff")
    with pytest.raises(Refused, match="UTF-8 at byte 2"):
        read_text(CorpusFile(path=str(tmp_path / "c.txt"), sha256=sha256(b"ab\xff")))


def test_a_tokenizer_is_verified(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    fields = {
        "files": (CorpusFile(path=PYTHON_REFERENCE, sha256="0" * 64),), "tokenizer_type": "bpe",
        "tokenizer_path": "/of/another/host/tokenizer.json",
    }  # fmt: skip
    assert read_tokenizer(DataConfig(**fields, tokenizer_sha256=sha256(b"{}")), tmp_path) == b"{}"
    with pytest.raises(Refused, match="tokenizer_path"):
        read_tokenizer(DataConfig(**fields, tokenizer_sha256="0" * 64), tmp_path)
