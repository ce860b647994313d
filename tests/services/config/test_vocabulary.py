"""The vocabulary is the tokenizer's for texts, and the model's for token ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from services.config.job import JobConfig
from tests.support.facts import has_facts

Load = Callable[..., tuple[JobConfig, list[str]]]
Refuse = Callable[..., str]
TOKENS = len(set("abc ")) + 3
"""Tokens of the char tokenizer of `corpus.txt`."""


def test_a_text_has_the_vocabulary_of_its_tokenizer(load: Load) -> None:
    job, notices = load()
    assert (job.model.vocab_size, job.vocabulary, notices) == (None, TOKENS, [])
    assert load(transformer_config={"vocab_size": TOKENS}) == (job, [])


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_another_vocab_size_is_one_notice_with_both_sizes(load: Load, model: str) -> None:
    plain, _ = load(transformer_config={"model_type": model})
    job, notices = load(transformer_config={"model_type": model, "vocab_size": 96})
    assert job == plain
    (line,) = notices
    assert has_facts(
        line, "transformer_config.vocab_size: 96 given ... parameters ... 7 tokens ... parameters"
    )
    assert "training_config.vocabulary: config" in line and len(line) <= 300


def test_the_notice_counts_the_parameters_of_both(load: Load) -> None:
    sizes = {"num_heads": 1, "embedding_dim": 32, "num_blocks": 1, "max_sequence_length": 32}
    (line,) = load(transformer_config={**sizes, "vocab_size": 96})[1]
    rest = 12 * 32 * 32 + 13 * 32 + 32 * 32 + 2 * 32  # one block, positions, and the last norm
    assert f"({rest + 2 * 96 * 32:,} parameters)" in line
    assert f"({rest + 2 * TOKENS * 32:,} parameters)" in line


def test_vocabulary_config_takes_the_larger_one(load: Load) -> None:
    rule = {"vocabulary": "config"}
    job, notices = load(training_config=rule, transformer_config={"vocab_size": 96})
    assert (job.model.vocab_size, job.vocabulary, notices) == (96, 96, [])
    job, notices = load(training_config=rule, transformer_config={"vocab_size": 5})
    assert (job.model.vocab_size, job.vocabulary) == (None, TOKENS)
    assert [notice.split(":")[0] for notice in notices] == ["transformer_config.vocab_size"]
    _, notices = load(training_config=rule)
    assert [notice.split(":")[0] for notice in notices] == ["training_config.vocabulary"]


def test_token_ids_have_the_vocabulary_of_the_model_else_of_the_file(load: Load, folder: Path) -> None:
    tokens = [token % 50 for token in range(500)]
    (folder / "ids.yaml").write_text(f"tokenizer_vocab_size: 60\ndata_length: 500\ntokens: {tokens}\n")
    training = {"data_path": "ids.yaml"}
    sizes = {"max_sequence_length": 32}
    assert load(training_config=training, transformer_config=sizes)[0].model.vocab_size == 60
    job, notices = load(training_config=training, transformer_config={**sizes, "vocab_size": 51})
    assert (job.model.vocab_size, notices) == (51, [])
    own = {"model_type": "shop.models:Mixer", **sizes}
    assert load(training_config=training, transformer_config=own)[0].vocabulary == 60
    assert load(training_config=training, transformer_config={**own, "vocab_size": 70})[0].vocabulary == 70


def test_an_id_beyond_the_vocabulary_is_refused_by_value_and_position(refused: Refuse, folder: Path) -> None:
    ids = np.zeros(500, "<u4")
    ids[321] = 77
    ids.tofile(folder / "ids.npy.bin")
    np.save(folder / "ids.npy", ids)
    line = refused(
        training_config={"data_path": "ids.npy"},
        transformer_config={"vocab_size": 77, "max_sequence_length": 32},
    )
    assert has_facts(
        line, "training_config.data_path: ids.npy has id 77 at position 321, expected ids below 77"
    )


def test_token_ids_without_any_vocabulary_are_refused(refused: Refuse, folder: Path) -> None:
    np.save(folder / "ids.npy", np.zeros(500, np.uint16))
    line = refused(training_config={"data_path": "ids.npy"}, transformer_config={"max_sequence_length": 32})
    assert has_facts(line, "transformer_config.vocab_size: missing ... vocab_size: 50257")
