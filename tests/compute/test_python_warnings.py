"""A compute process puts Python warnings on one line of its log each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MODEL = 'import warnings\nwarnings.warn("this layer\\nis slow", FutureWarning, stacklevel=1)\n'
SCRIPT = """
from services.runtime import logs
from compute.python_warnings import log_python_warnings
logs.configure("info", "text")
log_python_warnings()
import model
"""


def test_a_warning_of_a_user_s_model_is_one_line_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    (line,) = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stderr.splitlines()
    assert "WARNING tiermesh.compute" in line and "model.py:2" in line and "slow" in line
