"""Fixture that runs scripts which open a mesh in their own processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def on_device() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs this Python in a new process: ttnn supports one arrangement of devices in each."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=3600,
            check=False,
        )

    return run
