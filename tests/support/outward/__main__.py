"""Rewrite the golden files, or print the section that the command line names."""

from __future__ import annotations

import sys

from tests.support.outward import SECTIONS, dump
from tests.support.outward.common import GOLDEN

if sys.argv[1:]:
    print(dump(sys.argv[1]), end="")
else:
    GOLDEN.mkdir(exist_ok=True)
    for section in SECTIONS:
        (GOLDEN / f"{section}.json").write_text(dump(section))
