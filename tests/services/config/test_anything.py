"""Tests that any YAML document or text becomes a job or is refused in one printable line."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from services.config.load import load_job, load_job_document
from services.config.refusals import format_value, yaml_keys
from services.config.sections import SECTIONS, AdamWSection, SGDSection
from services.errors import Refused

FOLDER = Path(tempfile.mkdtemp(prefix="tiermesh-config-"))
(FOLDER / "corpus.txt").write_text("abc " * 1000)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=1, max_value=64)
    | st.floats()
    | st.text(max_size=10)
    | st.binary(max_size=4)
    | st.dates()
    | st.sampled_from(
        [
            *("", ".", "corpus.txt", "builtin:python-reference", "SGD", "AdamW", "enabled", "\0"),
            *("gpt2", "llama", "mlp", "shop.models:Mixer", "ddp", "fsdp", "tp", "memory_efficient"),
        ]
    )
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3),
    max_leaves=5,
)
OPTIMIZER_KEYS = sorted({*yaml_keys(AdamWSection), *yaml_keys(SGDSection)})


def section(name: str) -> st.SearchStrategy[Any]:
    """Return a strategy for a section: mostly known keys with any values, sometimes other keys or no mapping."""
    keys = st.sampled_from(yaml_keys(SECTIONS[name])) | st.text(max_size=6)
    values = ANYTHING | st.dictionaries(st.sampled_from(OPTIMIZER_KEYS), ANYTHING, max_size=4)
    return st.dictionaries(keys, values, max_size=4) | ANYTHING


DOCUMENTS = st.fixed_dictionaries({}, optional={name: section(name) for name in SECTIONS})


def check_document(document: dict[Any, Any], *overrides: str) -> None:
    try:
        job, notices = load_job_document(document, folder=FOLDER, overrides=overrides)
    except Refused as error:
        assert str(error).isprintable()
        assert len(str(error)) <= (200 if "unknown key" in str(error) else error.limit)
    else:
        assert all(notice.isprintable() for notice in notices)
        assert job.from_json(job.to_json()) == job


@settings(max_examples=300, deadline=None)
@given(DOCUMENTS)
def test_any_mapping(document: dict[str, Any]) -> None:
    check_document(document)
    training = document.get("training_config")
    check_document(
        {
            **document,
            "training_config": {
                "data_path": "corpus.txt",
                **(training if isinstance(training, dict) else {}),
            },
        }
    )


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(SCALARS, ANYTHING, max_size=3))
def test_any_mapping_of_other_keys(document: dict[Any, Any]) -> None:
    check_document(document)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.text(max_size=20) | st.builds("{}={}".format, st.sampled_from(OPTIMIZER_KEYS), st.text(max_size=9))
    )
)
def test_any_override(overrides: list[str]) -> None:
    check_document({"training_config": {"data_path": "corpus.txt"}}, *overrides)


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=60)
    | st.text(alphabet="abc:{}[]&*!|>-?#'\"%@, \n\t01.e_=<", max_size=60).map(str.encode)
)
def test_any_file(content: bytes) -> None:
    path = FOLDER / "any.yaml"
    path.write_bytes(content)
    for text in (content, b"training_config:\n  " + content):
        path.write_bytes(text)
        try:
            load_job(path)
        except Refused as error:
            assert str(error).isprintable()


@settings(max_examples=200, deadline=None)
@given(ANYTHING | st.text() | st.integers(min_value=2**4000, max_value=2**60000))
def test_any_value_is_shown_on_one_short_line(value: object) -> None:
    assert format_value(value).isprintable()
    assert len(format_value(value)) <= 60
