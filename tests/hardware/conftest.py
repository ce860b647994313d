"""Makes the helpers of this folder and the contract's models importable by name, here and in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLACES = [str(HERE), str(HERE.parent / "contract"), str(ROOT)]

sys.path[:0] = PLACES[:2]


@pytest.fixture(scope="session")
def on_device() -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs this Python in a process of its own: ttnn knows one arrangement of devices a process."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(PLACES)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=3600,
            check=False,
        )

    return run
