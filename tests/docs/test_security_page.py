"""Check that the pages on security and insiders name a test for each sentence on what is protected."""

from __future__ import annotations

import re
from pathlib import Path

from services.runtime.certificate_watch import WARNING_DAYS
from services.transport.access.permissions import CallerKind
from services.transport.access.rechecks import CHECK_AGAIN_SECONDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operate" / "security.md").read_text()
INSIDERS = (ROOT / "docs" / "internals" / "insiders.md").read_text()


def rows(title: str, page: str = PAGE) -> list[list[str]]:
    """Return the cells of the table in a section of a page."""
    section = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_sentence_has_tests_that_exist() -> None:
    protected = rows("What is protected", INSIDERS)
    assert len(protected) >= 15
    for sentence, cell in protected:
        check_tests(cell, sentence)


def check_tests(cell: str, sentence: str) -> None:
    """Check that a cell lists tests of a sentence, and nothing else, and that they exist."""
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", cell)
    assert tests, sentence
    assert cell == ", ".join(f"`{path}::{name}`" for path, name in tests), sentence
    for path, name in tests:
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), (path, name)


def test_what_insiders_can_not_do_has_tests_that_exist() -> None:
    listed = rows("What an insider can and can't do", INSIDERS)
    assert {role for role, *_ in listed} >= {"worker", "neighbour in a row", "standby", "person"}
    for role, _, cannot, cell in listed:
        assert cannot, role
        check_tests(cell, cannot)


def test_every_kind_of_caller_is_listed() -> None:
    listed = {kind.strip() for row in rows("Who may call what") for kind in row[0].split(",")}
    assert listed == {kind.value for kind in CallerKind}


def test_numbers_are_those_of_the_code() -> None:
    text = " ".join(PAGE.split())
    assert f"end open calls of revoked certificates within {CHECK_AGAIN_SECONDS:g} s" in text
    assert f"ends the person's open calls within {CHECK_AGAIN_SECONDS:g} s" in text
    assert f"From {WARNING_DAYS:g} days before on" in text
