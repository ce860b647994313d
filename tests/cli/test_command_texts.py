"""The command's texts match the list in golden/texts.txt; see command_texts.py."""

from __future__ import annotations

import difflib
import subprocess
import sys

from tests.cli.command_texts import GOLDEN
from tests.support.cluster.fork_server import ROOT


def test_help_fits_into_80_columns_and_is_not_cut() -> None:
    blocks = [each for each in GOLDEN.read_text().split("\n$ ") if " --help " in each.partition("\n")[0]]
    assert len(blocks) > 40
    for block in blocks:
        title, *lines = block.splitlines()
        assert not [line for line in lines if line.endswith("...") and "Usage: " not in line], title
        if "at 80 columns" in title:
            assert max(map(len, lines)) <= len("    ") + 80, title


def test_texts_match_the_list() -> None:
    # A process of its own: daemons set up logging and numpy's threads.
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.command_texts", "--print"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    diff = list(
        difflib.unified_diff(GOLDEN.read_text().splitlines(), done.stdout.splitlines(), lineterm="", n=1)
    )
    assert not diff, "read the new texts, then run python -m tests.cli.command_texts\n" + "\n".join(diff)
