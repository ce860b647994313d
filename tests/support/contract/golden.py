"""Golden call sequences: the calls of the worker's training step, kept as files.

A golden file changes only when the worker's ops change on purpose. Read the difference, then run
`TIERMESH_REWRITE_GOLDEN=1 pytest tests/contract` and commit the files together with the change.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "contract" / "golden"
PAGE = ROOT / "docs" / "internals" / "contract.md"
REWRITE = "TIERMESH_REWRITE_GOLDEN"


def assert_matches_golden(name: str, lines: list[str]) -> None:
    """Check `lines` against a golden file, or write it. Raises AssertionError with the difference."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get(REWRITE):
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    golden = path.read_text().splitlines() if path.exists() else []
    if golden != lines:
        difference = list(difflib.unified_diff(golden, lines, path.name, "this run", lineterm="", n=1))
        shown = "\n".join(difference[:40])
        raise AssertionError(f"{name}: the calls differ from {path.name}:\n{shown}\n{__doc__}")


def assert_page_has_table(name: str, lines: list[str]) -> None:
    """Check `lines` against the named table in docs/internals/contract.md, or write it. Raises AssertionError."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, found, rest = PAGE.read_text().partition(begin)
    table, ended, after = rest.partition(end)
    assert found and ended, f"{PAGE.name} lacks the comments around table {name!r}"
    if os.environ.get(REWRITE):
        table = "\n".join(lines) + "\n"
        PAGE.write_text(f"{before}{begin}{table}{end}{after}")
    assert table.splitlines() == lines, (
        f"table {name!r} in {PAGE.name} is out of date; run with {REWRITE}=1 to rewrite it"
    )
