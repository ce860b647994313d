"""With its fix taken out, each finding of issue 24 that needs real processes fails its case of `test_processes.py`.

Those of a worker's messages are in `mutations.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from tests.insider import unfixed

ROOT = Path(__file__).resolve().parents[2]
A_PERSON = "test_what_a_person_could_do_to_others"
CASES: list[tuple[Callable[[], None], str, str]] = [
    (unfixed.shares_places_by_order, f"{A_PERSON}[trickles_all]", "all places are taken"),
    (unfixed.shares_parts_of_files, f"{A_PERSON}[trickles_a_file_of_another]", "another process uploads it"),
    (unfixed.charges_claimed_sizes, f"{A_PERSON}[charges_another]", "person bob: 0.0 GB more and 1.0 GB"),
    (unfixed.parses_any_text, f"{A_PERSON}[names_a_huge_identity]", "has taken more|behind it"),
    (
        unfixed.lets_workers_fill_the_disk,
        "test_what_a_worker_uploads_leaves_room_for_others",
        "on a full disk",
    ),
    (unfixed.takes_nul_bytes_in_paths, f"{A_PERSON}[has_a_nul_byte_in_a_path]", "would wait for ever"),
]
"""Fixes taken out, the cases that must fail, and what they must say (a regular expression)."""


@pytest.mark.slow
@pytest.mark.parametrize(("mutation", "case", "expected"), CASES, ids=[each.__name__ for each, *_ in CASES])
def test_a_fix_that_is_taken_out_fails_its_case(
    mutation: Callable[[], None], case: str, expected: str
) -> None:
    with TemporaryFile("w+") as output:  # a pipe would be waited for, and a daemon that hangs has it open
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "long", f"tests/insider/test_processes.py::{case}"],
            cwd=ROOT,
            env={**os.environ, unfixed.VARIABLE: mutation.__name__},
            stdout=output,
            stderr=output,
            check=False,
        )
        output.seek(0)
        printed = output.read()
    assert "1 failed" in printed[-200:] and re.search(expected, printed), printed[-5000:]
