"""A worker that says it computes with another version of numpy than it has."""

from __future__ import annotations

import sys

import numpy as np

from cli.main import main
from services.runtime import process

CLAIMED = "0.9"

if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    np.__version__ = CLAIMED
    sys.exit(main())
