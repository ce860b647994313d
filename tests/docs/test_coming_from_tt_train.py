"""Check that docs/use/coming-from-tt-train.md names every key that a config may have, and commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from cli.main import tiermesh
from services.config.refusals import yaml_keys
from services.config.sections import (
    SECTIONS,
    AdamWSection,
    ExperimentalSection,
    RopeScalingSection,
    SGDSection,
)

PAGE = (Path(__file__).parents[2] / "docs" / "use" / "coming-from-tt-train.md").read_text()
QUOTED = re.findall(r"`([^`\n]+)`", PAGE)
NAMED = {word for text in QUOTED for word in re.findall(r"\w+", text)}


@pytest.mark.parametrize(
    "schema", [*SECTIONS.values(), AdamWSection, SGDSection, RopeScalingSection, ExperimentalSection]
)
def test_every_key_is_named(schema: type[BaseModel]) -> None:
    assert {*yaml_keys(schema)} - NAMED == set()


def test_every_section_is_named() -> None:
    assert {*SECTIONS} - NAMED == set()


def test_commands_in_tables_exist() -> None:
    named = {text.split()[1] for text in QUOTED if text.startswith("tiermesh ")}
    assert len(named) > 8 and named <= {*tiermesh.load_all()}


@pytest.mark.parametrize(
    "variable", ["MASTER_ADDR", "RANK", "WORLD_SIZE", "TT_MESH_ID", "TT_VISIBLE_DEVICES"]
)
def test_variables_of_launchers_are_named(variable: str) -> None:
    assert variable in NAMED
