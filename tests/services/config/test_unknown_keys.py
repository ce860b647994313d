"""An unknown key is one line of at most 200 characters with the known keys that it may stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.config.foreign_keys import foreign_key_path
from services.config.refusals import UNKNOWN_KEY_CHARACTERS, unknown_key_error, yaml_keys
from services.config.sections import (
    SECTIONS,
    AdamWSection,
    ExperimentalSection,
    RopeScalingSection,
    SGDSection,
    key_parents,
    section_keys,
)
from services.config.spelling import count_edits, nearest_names
from tests.support.facts import has_facts

Refuse = Callable[..., str]

MAPPINGS: dict[str, list[str]] = {
    **{section: section_keys(section) for section in SECTIONS},
    "training_config.optimizer": yaml_keys(AdamWSection),
    "training_config.optimizer: SGD": yaml_keys(SGDSection),
    "transformer_config.rope_scaling": yaml_keys(RopeScalingSection),
    "transformer_config.experimental": yaml_keys(ExperimentalSection),
    "": list(SECTIONS),
}


def misspellings(word: str) -> Iterator[str]:
    """Yield spellings with one letter missing, changed, added or swapped with the next."""
    letters = "_z"
    for place in range(len(word) + 1):
        before, after = word[:place], word[place:]
        yield from (before + letter + after for letter in letters)
        if after:
            yield before + after[1:]
            yield from (before + letter + after[1:] for letter in letters)
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]


@pytest.mark.parametrize("where", MAPPINGS)
def test_a_misspelled_key_gets_its_own_name(where: str) -> None:
    known = MAPPINGS[where]
    for key in known:
        for wrong in set(misspellings(key)) - set(known) - {""}:
            line = str(unknown_key_error(where, wrong, "x" * 100, known, more=12))
            assert key in line.partition(", did you mean ")[2], (wrong, line)
            assert len(line) <= UNKNOWN_KEY_CHARACTERS


@given(
    st.sampled_from(sorted(MAPPINGS)),
    st.text(max_size=60) | st.integers() | st.none() | st.binary(),
    st.text(max_size=80) | st.lists(st.text(max_size=9)) | st.integers(),
    st.integers(0, 99),
)
def test_any_key_gives_one_short_line(where: str, key: object, value: object, more: int) -> None:
    line = str(unknown_key_error(where, key, value, MAPPINGS[where], more))
    assert line.isprintable()
    assert len(line) <= UNKNOWN_KEY_CHARACTERS
    assert any(name in line for name in MAPPINGS[where])


def test_several_names_may_be_meant() -> None:
    assert nearest_names("beta3", ["beta1", "beta2", "batch_size"]) == ["beta1", "beta2"]
    assert nearest_names("enable_xp", ["enable_tp", "enable_pp", "enable_ddp"]) == ["enable_pp", "enable_tp"]
    assert nearest_names("BATCH_SIZE", ["batch_size"]) == ["batch_size"]
    assert nearest_names("warmup", ["warmup_steps", "min_lr"]) == ["warmup_steps"]
    assert nearest_names("zzz", ["warmup_steps", "min_lr"]) == []


@pytest.mark.parametrize(
    ("first", "second", "edits"),
    [
        ("", "", 0),
        ("lr", "", 2),
        ("lr", "rl", 1),
        ("steps", "stems", 1),
        ("kitten", "sitting", 3),
        ("ca", "abc", 3),
    ],
)
def test_edits_are_counted(first: str, second: str, edits: int) -> None:
    assert count_edits(first, second, 9) == count_edits(second, first, 9) == edits
    assert count_edits(first, second, 1) == min(edits, 2)


@pytest.mark.parametrize(
    ("sections", "facts"),
    [
        ({"training_config": {"num_heads": 6}},
         "training_config.num_heads: 6 given in the wrong place, expected as transformer_config.num_heads; move it"),
        ({"training_config": {"lr": 0.1}}, "training_config.lr: 0.1 ... training_config.optimizer.lr; move it"),
        ({"vocab_size": 30522}, "vocab_size: 30522 given in the wrong place ... transformer_config.vocab_size"),
        ({"device_config": {"batch_size": 4}}, "device_config.batch_size: 4 ... training_config.batch_size"),
        ({"transformer_config": {"training_samples": 40}},
         "linear_regression_config.training_samples or mlp_config.training_samples"),
    ],
)  # fmt: skip
def test_a_key_of_another_section_is_named_with_its_place(
    refused: Refuse, sections: dict, facts: str
) -> None:
    line = refused(**sections)
    assert has_facts(line, facts)
    assert len(line) <= UNKNOWN_KEY_CHARACTERS


def test_no_key_that_is_known_counts_as_foreign() -> None:
    for section in SECTIONS:
        for key in section_keys(section):
            foreign = foreign_key_path(key)
            assert foreign is None or foreign[:-1] not in key_parents(key)
