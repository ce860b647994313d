"""The peer's Python environment. It has PyTorch, which Tiermesh itself never needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.harness.job_settings import BUILD
from benchmarks.harness.report import Skipped

PACKAGES = ("torch==2.13.0", "numpy==2.4.6", "safetensors==0.8.0", "httpx2==2.16.2")
PYTHON = "python3.11"
SCRIPTS = Path(__file__).parents[1] / "peers"
_INSTALL_SECONDS = 900


@cache
def peer_python() -> str:
    """Return the interpreter `TIERMESH_PEER_PYTHON`, else that of an environment under build/, created on first use.

    Raises:
        Skipped: there is no interpreter with PyTorch, and none can be created here.
    """
    given = os.environ.get("TIERMESH_PEER_PYTHON")
    python = Path(given) if given else BUILD / "torch" / "bin" / "python"
    if not given and not _has_torch(python):
        _install(python)
    if not _has_torch(python):
        raise Skipped(f"the peer is absent: {python} can't import torch, numpy, safetensors and httpx2")
    return str(python)


def _has_torch(python: Path) -> bool:
    if not python.is_file():
        return False
    command = [str(python), "-c", "import httpx2, numpy, safetensors, torch"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _install(python: Path) -> None:
    creator = shutil.which(PYTHON)
    if creator is None:
        raise Skipped(f"the peer is absent: no {PYTHON} to install PyTorch for; or set TIERMESH_PEER_PYTHON")
    print(f"    installing {', '.join(PACKAGES)} into {python.parents[1]} (once)", flush=True)
    commands = (
        [creator, "-m", "venv", "--clear", str(python.parents[1])],
        [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES],
    )
    for command in commands:
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_INSTALL_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            raise Skipped(f"the peer is absent: {' '.join(command[1:3])} failed: {error}") from None


def peer_command(mode: str, setting: dict[str, Any], script: str = "nanogpt.py") -> list[str]:
    """Return the command that runs a script of peers/ in one of the modes that the script documents."""
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / f"peer-{mode}.json"
    path.write_text(json.dumps(setting))
    return [peer_python(), str(SCRIPTS / script), mode, str(path)]


if __name__ == "__main__":
    try:
        print(peer_python())
    except Skipped as reason:
        print(f"skipped: {reason}")
