"""The character tokenizer is tt-train's, and both kinds can be saved as tokenizer.json and loaded again."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from services.errors import Refused
from training.data.tokenizer import (
    build_character_tokenizer,
    load_tokenizer,
)

TEXT = "To be,\n\tor not — to be?\n"


def test_characters_are_sorted_between_the_special_tokens():
    tokenizer = build_character_tokenizer(TEXT)
    vocabulary = json.loads(tokenizer.to_json())["model"]["vocab"]
    assert sorted(vocabulary, key=vocabulary.get) == ["<PAD>", *sorted(set(TEXT)), "<BEG>", "<END>"]
    assert tokenizer.size == len(set(TEXT)) + 3


def test_text_survives_encoding_and_saving():
    tokenizer = build_character_tokenizer(TEXT)
    ids = tokenizer.encode(TEXT)
    assert ids.dtype == np.uint32
    assert tokenizer.decode(ids.tolist()) == TEXT
    loaded = load_tokenizer(tokenizer.to_json(), "tokenizer.json")
    assert np.array_equal(loaded.encode(TEXT), ids)
    assert loaded.to_json() == tokenizer.to_json()


def test_the_fast_path_gives_the_library_s_ids():
    tokenizer = build_character_tokenizer(TEXT)
    by_library = HuggingFaceTokenizer.from_str(tokenizer.to_json()).encode(TEXT).ids
    assert tokenizer.encode(TEXT).tolist() == by_library


def test_special_tokens_are_not_text():
    assert build_character_tokenizer("ab").decode([0, 1, 2, 3, 4]) == "ab"


@pytest.mark.parametrize("character", ["z", "é", "\U0001f600"])
def test_an_unknown_character_is_refused_by_name(character: str):
    with pytest.raises(Refused, match=f"{character}.*position 2"):
        build_character_tokenizer("ab").encode("ab" + character)


def test_byte_pairs_from_a_file():
    library = HuggingFaceTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    library.train_from_iterator([TEXT * 20], trainer)
    tokenizer = load_tokenizer(library.to_str().encode(), "tokenizer.json")
    ids = tokenizer.encode(TEXT)
    assert tokenizer.size == library.get_vocab_size()
    assert len(ids) < len(TEXT)
    assert tokenizer.decode(ids.tolist()) == TEXT


def test_a_file_that_is_no_tokenizer_is_refused():
    with pytest.raises(Refused, match=r"tokenizer_path.*here\.json.*Hugging Face"):
        load_tokenizer(b"{}", "here.json")
