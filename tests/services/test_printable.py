"""Tests that any text becomes one printable line of bounded length."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.printable import (
    LINE_CHARACTERS,
    PATH_CHARACTERS,
    counted,
    group_by_reason,
    join_reasons,
    one_line,
    printable,
    printable_path,
)
from tests.support.processor_time import limit_work

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n\u202e\u2066\x00\x85\u2028\ud800"


@given(text=st.text(max_size=400) | st.text(alphabet=HOSTILE, max_size=400), limit=st.integers(4, 400))
@example(text=HOSTILE * 100_000, limit=300)
def test_any_text_becomes_one_bounded_printable_line(text: str, limit: int) -> None:
    for line in (printable(text, limit), one_line(text, limit)):
        assert line.isprintable()
        assert len(line) <= limit
        line.encode()


@given(text=st.text(alphabet=st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), max_size=300))
def test_a_printable_line_is_not_changed(text: str) -> None:
    assert printable(text) == text


def test_what_is_too_long_keeps_its_beginning_and_its_end() -> None:
    line = printable("what is wrong: " + "x" * 10_000 + "; how to fix it")
    assert len(line) == LINE_CHARACTERS
    assert line.startswith("what is wrong: xxx")
    assert line.endswith("xxx; how to fix it")
    assert printable_path("/" + "folder/" * 100 + "job.yaml").endswith("folder/job.yaml")
    assert len(printable_path("/" + "folder/" * 100)) == PATH_CHARACTERS


def test_long_paths_are_cut_before_the_sentence_around_them() -> None:
    """A state dir deep in a file system must not hide the command that fixes the cluster."""
    kept, other = "/mnt/" + "folder/" * 80 + "state", "/srv/" + "deep/" * 300 + "job.yaml"
    wrong = "worker worker-1 belongs to cluster 31ea5db8"
    remedy = (
        "; give it its own aggregator's address, or stop it and run `tiermesh cluster adopt 4bf1fecb9135dd7d`"
    )
    line = printable(f"{wrong} (--state-dir {kept}) of {other}{remedy}")
    assert len(line) <= LINE_CHARACTERS
    assert line.startswith(f"{wrong} (--state-dir /mnt/folder/") and line.endswith(f"/job.yaml{remedy}")
    assert one_line(f"{wrong} (--state-dir {kept}){remedy}").endswith(f"/state){remedy}")


def test_characters_that_a_terminal_acts_on_are_escaped() -> None:
    assert printable("a\x1b[31m\u202eb\n") == r"a\x1b[31m\u202eb\n"
    assert one_line("  a\n\tb \x07") == r"a b \x07"


def test_work_does_not_grow_with_the_text() -> None:
    text = "\x1b" * 50_000_000
    with limit_work(5):
        for _ in range(100):
            printable(text)
            one_line(text)


@pytest.mark.parametrize(
    ("count", "expected"), [(0, "0 meshes"), (1, "1 mesh"), (2, "2 meshes"), (1000, "1000 meshes")]
)
def test_a_count_has_the_noun_s_number(count: int, expected: str) -> None:
    assert counted(count, "mesh", "meshes") == expected
    assert counted(count, "link") == expected.replace("meshes", "links").replace("mesh", "link")


def test_a_reason_of_several_names_is_said_once() -> None:
    reasons = {"d": "gone", "a": "gone", "b": "building", "c": "gone", "e": "gone"}
    assert join_reasons(reasons) == "a, c and 2 others (gone), b (building)"
    assert join_reasons({"b": "gone", "a": "gone"}) == "a and b (gone)"
    assert group_by_reason({"c": "x", "b": "x", "a": "x"}) == [("a, b and c", "x")]
    assert join_reasons({}) == ""
