"""The golden sequences of calls: what the worker's training step asks of the device module, kept as files.

A golden file changes only with a change of the worker's ops that was meant: read the diff, then run
`TIERMESH_REWRITE_GOLDEN=1 pytest tests/contract` and commit the files with what changed them.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "contract" / "golden"
PAGE = ROOT / "docs" / "contract.md"
REWRITE = "TIERMESH_REWRITE_GOLDEN"


def hold_to_golden(name: str, lines: list[str]) -> None:
    """Raise AssertionError, with the difference, unless `lines` are those of the golden file (or write it)."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get(REWRITE):
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    golden = path.read_text().splitlines() if path.exists() else []
    if golden != lines:
        difference = list(difflib.unified_diff(golden, lines, path.name, "this run", lineterm="", n=1))
        shown = "\n".join(difference[:40])
        raise AssertionError(f"the step of {name} calls other ops than {path.name} has:\n{shown}\n{__doc__}")


def hold_to_page(name: str, lines: list[str]) -> None:
    """Raise AssertionError unless `lines` are the table of that name in the page on the contract (or write it)."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, found, rest = PAGE.read_text().partition(begin)
    table, ended, after = rest.partition(end)
    assert found and ended, f"{PAGE.name} has no place for the table of {name}"
    if os.environ.get(REWRITE):
        table = "\n".join(lines) + "\n"
        PAGE.write_text(f"{before}{begin}{table}{end}{after}")
    assert table.splitlines() == lines, (
        f"the table of {name} in {PAGE.name} is not this run's; if that is meant, write it with {REWRITE}=1"
    )
