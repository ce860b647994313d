"""Corpora as users write them: texts and token ids, one file or several with weights, and their tokenizers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from services.config.job import JobConfig
from services.corpora.token_file import TokenFile
from services.errors import Refused
from tests.support.facts import has_facts

Load = Callable[..., tuple[JobConfig, list[str]]]
Refuse = Callable[..., str]
GPT2 = {"vocab_size": 96, "max_sequence_length": 32}


@pytest.fixture
def ids(folder: Path) -> Path:
    """Return a file of 2,000 token ids from 0 to 95."""
    path = folder / "ids.bin"
    (np.arange(2000) % 96).astype("<u2").tofile(path)
    return path


def write_tokenizer(path: Path, tokens: int) -> None:
    vocabulary = {str(token): token for token in range(tokens)}
    path.write_text(json.dumps({"model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "0"}}))


def test_several_files_may_have_weights(load: Load, folder: Path) -> None:
    (folder / "b.txt").write_text("xyz " * 1000)
    data = load(training_config={"data_path": ["corpus.txt", "b.txt"]})[0].data
    assert [file.path for file in data.files] == [str(folder / "corpus.txt"), str(folder / "b.txt")]
    assert data.weights is None
    assert data.vocab_size == len(set("abc xyz ")) + 3  # one tokenizer for all texts
    weighted = [{"path": "corpus.txt", "weight": 3}, {"path": "b.txt", "weight": 0.5}]
    assert load(training_config={"data_path": weighted})[0].data.weights == (3.0, 0.5)


def test_the_weight_of_a_single_file_says_nothing(load: Load) -> None:
    plain = load(training_config={"data_path": "corpus.txt"})[0]
    assert load(training_config={"data_path": [{"path": "corpus.txt", "weight": 3}]})[0] == plain


def test_token_ids_are_named_by_identity_and_sha256(load: Load, ids: Path) -> None:
    job, notices = load(training_config={"data_path": "ids.bin"}, transformer_config=GPT2)
    sidecar = TokenFile.open(ids, "x").sidecar
    (file,) = job.data.files
    assert (file.kind, file.identity, file.sha256) == ("tokens", sidecar.identity, sidecar.sha256)
    assert (job.data.tokenizer_type, job.data.tokenizer_path, notices) == ("none", None, [])


@pytest.mark.parametrize("name", ["ids.yaml", "ids.csv"])
def test_token_ids_as_text_are_those_of_tt_train(load: Load, folder: Path, name: str) -> None:
    listed = [token % 50 for token in range(500)]
    if name == "ids.yaml":
        fields = f"tokenizer_vocab_size: 60\ndata_length: 500\ntokens: {listed}\n"
        (folder / name).write_text(fields)
    else:
        (folder / name).write_text(" ".join(map(str, listed)))
    size = {} if name == "ids.yaml" else {"vocab_size": 60}
    job, _ = load(training_config={"data_path": name}, transformer_config={"max_sequence_length": 32, **size})
    assert (job.model.vocab_size, job.vocabulary) == (60, 60)


def test_a_tokenizer_goes_with_token_ids_into_the_checkpoints(load: Load, ids: Path) -> None:
    write_tokenizer(ids.with_name("tok.json"), 96)
    settings = {"data_path": "ids.bin", "tokenizer_type": "bpe"}
    data = load(training_config={**settings, "tokenizer_path": "tok.json"}, transformer_config=GPT2)[0].data
    assert (data.tokenizer_type, data.tokenizer_path) == ("bpe", str(ids.with_name("tok.json")))
    # tt-train's files say bpe without a path for token ids; they need none.
    assert load(training_config=settings, transformer_config=GPT2)[0].data.tokenizer_type == "none"


def test_a_char_tokenizer_has_no_effect_on_token_ids(load: Load, ids: Path) -> None:
    settings = {"data_path": "ids.bin", "tokenizer_type": "char"}
    _, notices = load(training_config=settings, transformer_config=GPT2)
    assert [notice.split(":")[0] for notice in notices] == ["training_config.tokenizer_type"]


def test_texts_and_token_ids_may_be_mixed_with_one_tokenizer(load: Load, ids: Path) -> None:
    write_tokenizer(ids.with_name("tok.json"), 96)
    settings = {"data_path": ["corpus.txt", "ids.bin"], "tokenizer_type": "bpe", "tokenizer_path": "tok.json"}
    data = load(training_config=settings)[0].data
    assert [file.kind for file in data.files] == ["text", "tokens"]


@pytest.mark.parametrize(
    ("training", "facts"),
    [
        ({"data_path": []}, "training_config.data_path: [] given, expected a path, or a list"),
        ({"data_path": 3}, "training_config.data_path: 3 given, expected a path, or a list"),
        ({"data_path": ""}, "training_config.data_path[0].path"),
        ({"data_path": ["corpus.txt", 3]}, "training_config.data_path[1]: 3 given"),
        ({"data_path": ["corpus.txt", "missing.txt"]}, 'training_config.data_path[1]: no file "missing.txt"'),
        ({"data_path": ["corpus.txt", "short.txt"]},
         'training_config.data_path[1]: "short.txt" has 20 characters, expected at least 144'),
        ({"data_path": [{"path": "corpus.txt", "wieght": 1}]},
         "training_config.data_path[0].wieght: unknown key ... weight"),
        ({"data_path": [{"path": "corpus.txt", "weight": 0}, "corpus.txt"]},
         "training_config.data_path[0].weight: 0 given, expected a number above 0"),
        ({"data_path": [{"path": "corpus.txt", "weight": 1}, "corpus.txt"]},
         "training_config.data_path[1].weight: missing, expected a weight for each file or for none"),
        ({"data_path": ["corpus.txt"] * 513}, "training_config.data_path"),
        ({"data_path": ["corpus.txt", "ids.bin"]},
         "training_config.tokenizer_type: char given with tokens in ... ids.bin"),
        ({"data_path": "cut.bin"}, "training_config.data_path: ... cut.bin"),
        ({"data_path": "tok.json"}, 'training_config.data_path: "tok.json" given, expected a text, or token ids as'),
        ({"data_path": "few.bin"}, 'training_config.data_path: "few.bin" has 20 token ids'),
        ({"data_path": "ids.bin", "tokenizer_path": "missing.json"}, "training_config.tokenizer_path: no file"),
        ({"data_path": "ids.bin", "tokenizer_path": "small.json"},
         'training_config.data_path: ids.bin has id 95 at position 95, expected ids below 50 '
         "(training_config.tokenizer_path)"),
    ],
)  # fmt: skip
def test_a_bad_corpus_is_refused(
    refused: Refuse, folder: Path, ids: Path, training: dict, facts: str
) -> None:
    (folder / "short.txt").write_text("abc " * 5)
    (folder / "cut.bin").write_bytes(ids.read_bytes()[:-1])
    (folder / "few.bin").write_bytes(ids.read_bytes()[:40])
    write_tokenizer(folder / "small.json", 50)
    write_tokenizer(folder / "tok.json", 96)
    sizes = {} if "corpus.txt" in str(training) else GPT2
    line = refused(training_config=training, transformer_config=sizes)
    assert has_facts(line, facts)
    assert len(line) <= (1000 if "looked in" in line else 300)


def test_a_tokenizer_of_another_model_is_refused(refused: Refuse, ids: Path) -> None:
    """Its sidecar says which tokenizer made the ids."""
    sidecar = TokenFile.open(ids, "x").sidecar.model_copy(update={"tokenizer_sha256": "3" * 64})
    ids.with_name("ids.bin.sidecar.json").write_text(sidecar.model_dump_json(exclude_none=True))
    write_tokenizer(ids.with_name("tok.json"), 96)
    line = refused(
        training_config={"data_path": "ids.bin", "tokenizer_path": "tok.json"}, transformer_config=GPT2
    )
    assert has_facts(
        line, "training_config.tokenizer_path: ... tok.json has sha256 ... ids.bin ... 3333333333333333"
    )


def test_too_many_held_out_batches_are_refused(refused: Refuse, load: Load, folder: Path) -> None:
    path = folder / "large.bin"
    with path.open("wb") as file:
        file.truncate(2 * 10 * 32 * (1 << 18) + 2000)  # sparse: ids 0
    settings = {"data_path": "large.bin", "validation_batch_size": 1}
    line = refused(training_config=settings, transformer_config=GPT2)
    assert has_facts(line, "training_config.validation_batches: not given ... at most 262144 ... write")
    job, _ = load(training_config={**settings, "validation_batches": 7}, transformer_config=GPT2)
    assert job.validation_batches == 7


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        ({"files": []}, "data.files"),
        ({"files": [{"path": "/a", "sha256": "1" * 64, "kind": "tokens"}]}, "/a is tokens without an identity"),
        ({"files": [{"path": "/a", "sha256": "1" * 64, "identity": "1" * 64}]}, "/a is text with an identity"),
        ({"files": [{"path": "/a", "sha256": "1" * 64}], "tokenizer_type": "none"},
         "tokenizer_type: none given with text"),
        ({"files": [{"path": "/a", "sha256": "1" * 64}], "path": "/a"}, "data.path: unknown key"),
    ],
)  # fmt: skip
def test_a_bad_record_of_a_corpus_is_refused(fields: dict, facts: str) -> None:
    with pytest.raises(Refused) as caught:
        JobConfig.from_json(json.dumps({"model": {"model_type": "gpt2"}, "data": fields}))
    assert has_facts(str(caught.value), facts)
