"""`tiermesh tokenize`: the ids of one encode call for each document, in a file that appears complete or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from cli.main import main
from cli.output import Output
from cli.tokenize import documents, encoding, progress
from cli.tokenize.documents import DOCUMENT_BYTES, Documents
from services.config.corpus import python_reference_text
from services.corpora.sidecar import sidecar_path
from services.corpora.token_file import TokenFile
from services.errors import Refused
from tests.support.cluster.fork_server import ROOT
from tests.support.small_disk import small_disk

END = "<|endoftext|>"


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a byte-pair encoding of 400 tokens, with settings for batches of a fixed shape that must not count."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[END],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([python_reference_text()[:50_000]], trainer)
    tokenizer.enable_padding(length=64)
    tokenizer.enable_truncation(32)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def ids_of(tokenizer_file: Path, texts: list[str]) -> list[list[int]]:
    """Return the ids of each text, by a call for each."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def tokenize(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code = main(["tokenize", *map(str, arguments), "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    result: dict[str, Any] = json.loads(captured.out.splitlines()[-1])
    return result


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 2) -> str:
    assert main(["tokenize", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.isprintable() and len(line) <= 320
    return line


def stored(path: Path) -> list[int]:
    found = TokenFile.open(path, "data_path")
    return found.read(0, found.count).tolist()


def test_each_file_is_a_document(
    tmp_path: Path, tokenizer_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [python_reference_text()[start : start + 20_000] for start in (0, 50_000)] + [
        "Grüße, 漢字 😀\r\n"
    ]
    paths = []
    for number, text in enumerate([*texts, ""]):
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_bytes(text.encode())
    result = tokenize(capsys, *paths, "--tokenizer", tokenizer_file, "-o", tmp_path / "ids.bin")
    expected = [token for ids in ids_of(tokenizer_file, texts) for token in ids]
    assert stored(tmp_path / "ids.bin") == expected
    assert (result["documents"], result["ids"], result["dtype"]) == (3, len(expected), "uint16")
    assert (
        result["tokenizer_vocab_size"] == TokenFile.open(tmp_path / "ids.bin", "").tokenizer_vocab_size == 400
    )
    assert sorted(each.name for each in tmp_path.glob("*ids*")) == ["ids.bin", "ids.bin.sidecar.json"]


def test_separators_json_lines_and_ends(
    tmp_path: Path, tokenizer_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 30)
    monkeypatch.setattr(documents, "_PIECE_BYTES", 7)
    texts = ["one two three", "vier fünf sechs", "x" * 100, "seven\neight"]
    (tmp_path / "a.txt").write_text(END.join([*texts[:2], "", texts[2], ""]))
    (tmp_path / "b.jsonl").write_text(
        f"\n{json.dumps({'text': texts[3], 'id': 7})}\n{json.dumps({'text': ''})}\n"
    )
    tokenize(
        capsys, tmp_path / "a.txt", tmp_path / "b.jsonl", "--tokenizer", tokenizer_file.parent,
        "-o", tmp_path / "ids.u32.bin", "--document-separator", END, "--end-of-text", END,
    )  # fmt: skip
    assert stored(tmp_path / "ids.u32.bin") == [
        token for ids in ids_of(tokenizer_file, texts) for token in (*ids, 0)
    ]
    assert (tmp_path / "ids.u32.bin").stat().st_size == 4 * len(stored(tmp_path / "ids.u32.bin"))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=8),
    piece_bytes=st.integers(1, 9),
    batch_characters=st.integers(1, 20),
)
def test_any_documents_have_the_ids_of_one_call_each(
    tokenizer_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    texts: list[str],
    piece_bytes: int,
    batch_characters: int,
) -> None:
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", batch_characters)
    monkeypatch.setattr(documents, "_PIECE_BYTES", piece_bytes)
    path = tmp_path / "texts"
    path.write_bytes("|".join(texts).encode())
    parts = [part for part in "|".join(texts).split("|") if part]
    found = Documents([path], "|")
    assert [document.text for document in found] == parts
    assert found.read_bytes == found.total_bytes == path.stat().st_size
    encoder = encoding.Encoder(tokenizer_file.read_bytes(), "tokenizer.json", None)
    batches = [ids for ids, _ in encoder.encode(Documents([path], "|"))]
    expected = [token for ids in ids_of(tokenizer_file, parts) for token in ids]
    assert [token for ids in batches for token in ids] == expected


@given(content=st.binary(max_size=60), name=st.sampled_from(["a.txt", "a.jsonl"]))
def test_any_bytes_are_documents_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    try:
        for document in Documents([path], None):
            document.text.encode()
    except Refused as refused:
        assert str(refused).isprintable() and len(str(refused)) <= 300


def test_a_complete_file_is_replaced_only_by_force(
    tmp_path: Path, tokenizer_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, path = tmp_path / "a.txt", tmp_path / "ids.bin"
    text.write_text("one")
    arguments = (text, "--tokenizer", tokenizer_file, "-o", path)
    tokenize(capsys, *arguments)
    text.write_text("one two three")
    assert "ids.bin: exists; give --force" in refusal(capsys, *arguments)
    tokenize(capsys, *arguments, "--force")
    assert stored(path) == ids_of(tokenizer_file, ["one two three"])[0]


BAD_TEXTS = {
    "missing.txt": (None, "missing.txt: no such file"),
    "latin.txt": (b"gr\xfcn", "latin.txt: document 1: not UTF-8 at byte 2 of the file"),
    "ids.npy": (b"\5\0\6\0", "ids.npy: is a file of token ids by its name, expected texts"),
    "empty.txt": (b"", "no documents with a text"),
    "bad.jsonl": (b'{"text": "a"}\n{"text": 5}\n', "bad.jsonl: line 2: has no text"),
    "open.jsonl": (b'{"text": "a"', "open.jsonl: line 1: not JSON"),
    "half.jsonl": (b'{"text": "\\ud800"}', "half.jsonl: line 1: has half of a surrogate pair"),
    "deep.jsonl": (b"[" * 100_000, "deep.jsonl: line 1: not JSON"),
    "long.txt": (b"x" * (DOCUMENT_BYTES + 1), "long.txt: more than 16 MiB, which no document may have"),
}


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_texts_that_are_none(
    tmp_path: Path, tokenizer_file: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    content, expected = BAD_TEXTS[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    before = set(tmp_path.iterdir())
    text = refusal(capsys, tmp_path / name, "--tokenizer", tokenizer_file, "-o", tmp_path / "ids.bin")
    assert expected in text
    assert set(tmp_path.iterdir()) == before


def test_a_document_may_not_be_too_long_between_separators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "DOCUMENT_BYTES", 10)
    path = tmp_path / "a.txt"
    path.write_text("short|" + "x" * 11 + "|short")
    with pytest.raises(Refused, match="document 2: more than"):
        list(Documents([path], "|"))
    (tmp_path / "a.jsonl").write_text('{"text": "12345678901"}')
    with pytest.raises(Refused, match="line 1: more than"):
        list(Documents([tmp_path / "a.jsonl"], None))


def test_wrong_options(tmp_path: Path, tokenizer_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "a.txt"
    text.write_text("one")
    ids = tmp_path / "ids.bin"
    os.mkfifo(tmp_path / "pipe")
    assert "--tokenizer: " in refusal(capsys, text, "--tokenizer", tmp_path / "none", "-o", ids)
    assert "is no Hugging Face tokenizer" in refusal(capsys, text, "--tokenizer", text, "-o", ids)
    assert "is a pipe" in refusal(capsys, text, "--tokenizer", tmp_path / "pipe", "-o", ids)
    known = ("--tokenizer", tokenizer_file)
    assert "is a pipe" in refusal(capsys, tmp_path / "pipe", *known, "-o", ids)
    assert "is a folder" in refusal(capsys, tmp_path, *known, "-o", ids)
    (tmp_path / "folder.bin").mkdir()
    assert "is no regular file" in refusal(capsys, text, *known, "-o", tmp_path / "folder.bin", "--force")
    assert "ends in .bin or .yaml" in refusal(capsys, text, *known, "-o", tmp_path / "ids.npy")
    assert "folder is missing" in refusal(capsys, text, *known, "-o", tmp_path / "none" / "ids.bin")
    assert "has no token 'nonsense'" in refusal(capsys, text, *known, "-o", ids, "--end-of-text", "nonsense")
    assert "'' given" in refusal(capsys, text, *known, "-o", ids, "--document-separator", "")
    assert not ids.exists() and not sidecar_path(ids).exists()


def test_a_vocabulary_beyond_16_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vocabulary = {f"w{number}": number for number in range(70_000)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = tmp_path / "a.txt"
    text.write_text("w69999 w1")
    arguments = (text, "--tokenizer", tmp_path, "-o")
    assert tokenize(capsys, *arguments, tmp_path / "ids.bin")["dtype"] == "uint32"
    assert stored(tmp_path / "ids.bin") == [69_999, 1]
    assert "the tokenizer has 70000 ids" in refusal(capsys, *arguments, tmp_path / "ids.u16.bin")


def test_a_document_that_the_tokenizer_cannot_encode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Tokenizer(models.WordLevel({"known": 0})).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("known|known|other")
    text = refusal(
        capsys, tmp_path / "a.txt", "--tokenizer", tmp_path, "-o", tmp_path / "ids.bin", "--document-separator", "|"
    )  # fmt: skip
    assert "a.txt: document 3: the tokenizer can't encode it" in text
    assert not (tmp_path / "ids.bin").exists()


def test_a_full_disk_leaves_nothing(
    tmp_path: Path, tokenizer_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "a.txt"
    text.write_text(python_reference_text()[:400_000])
    with small_disk(tmp_path / "disk", "256k") as disk:
        path = disk.path / "ids.bin"
        line = refusal(capsys, text, "--tokenizer", tokenizer_file, "-o", path, code=75)
        assert "ids.bin: not written (No space left on device); free space" in line
        assert list(disk.path.iterdir()) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path, tokenizer_file: Path) -> None:
    (tmp_path / "a.jsonl").write_text((json.dumps({"text": "word " * 2000}) + "\n") * 4000)
    out = tmp_path / "out"
    out.mkdir()
    texts = ["a.jsonl"] * 500  # takes so long that it can't end before the interrupt
    command = ["tokenize", *texts, "--tokenizer", str(tokenizer_file), "-o", "out/ids.bin"]
    running = subprocess.Popen(
        [sys.executable, "-m", "cli.main", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    while not any(out.iterdir()):
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors.strip()) == (1, "tiermesh: interrupted")
    assert list(out.iterdir()) == []


def test_progress_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    with progress.TokenizeProgress(Output(), 2_000_000) as shown:
        shown.update(500_000, 1234)
    assert capsys.readouterr().out == "25% of 2 MB  1,234 ids\n"


def test_memory_is_that_of_two_batches(tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 50)
    taken = given = 0

    def endless() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield documents.Document("word word ", "")

    encoder = encoding.Encoder(tokenizer_file.read_bytes(), "tokenizer.json", None)
    for _, number in encoder.encode(endless()):
        given += number
        assert taken - given <= 10
        if given > 200:
            break
    assert np.uint32(given) > 200
