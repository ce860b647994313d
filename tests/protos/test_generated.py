"""The generated modules match the .proto files; `make protos` regenerates them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_generated_modules_are_up_to_date(tmp_path: Path) -> None:
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos").glob("*.proto"))
    options = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I.", *options, *sources], cwd=ROOT, check=True
    )
    made = {path.name: path.read_text() for path in (tmp_path / "protos").iterdir()}
    for path in sorted((ROOT / "protos").glob("*_pb2*")):
        assert path.read_text() == made[path.name], f"{path.name} is out of date: run `make protos`"
