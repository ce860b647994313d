"""Module of a child process that runs the code on its command line: `python -m tests.support.child CODE`."""

from __future__ import annotations

import sys

from services.runtime.child_start import begin_child

if __name__ == "__main__":
    begin_child()
    exec(sys.argv[1], {})
