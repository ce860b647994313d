"""worker.api, the former name of training.api, works and gives one line that names the new one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MODEL = "from worker.api import Linear, Parameter\n"


def run_python(folder: Path, script: str) -> str:
    """Run a script that may import `model`, a user's module, and return its standard error."""
    (folder / "model.py").write_text(MODEL)
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[2])])
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stderr


def test_a_user_s_model_gets_the_same_objects_and_one_warning(tmp_path: Path) -> None:
    script = "import importlib, model, training.api; assert model.Linear is training.api.Linear"
    errors = run_python(tmp_path, f"{script}\nimportlib.reload(model)")
    (line,) = [line for line in errors.splitlines() if "FutureWarning" in line]
    assert "model.py:1" in line and "worker.api" in line and "training.api" in line


def test_a_worker_logs_the_warning_on_one_line(tmp_path: Path) -> None:
    script = """
from services.runtime import logs
from worker.daemon import log_python_warnings
logs.configure("info", "text")
log_python_warnings()
import model
"""
    (line,) = run_python(tmp_path, script).splitlines()
    assert "WARNING tiermesh.worker" in line and "model.py:1" in line and "training.api" in line
