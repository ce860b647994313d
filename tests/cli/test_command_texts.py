"""The command's texts match the list in golden/texts.txt; see command_texts.py."""

from __future__ import annotations

import difflib
import subprocess
import sys

from tests.cli.command_texts import GOLDEN
from tests.support.cluster.fork_server import ROOT


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
