"""Tests of the file that says which cluster a role belongs to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from services.runtime.cluster_identity import CLUSTER_FILE, read_cluster

ROOT = Path(__file__).resolve().parents[3]
WRITER = """
import os, sys; from pathlib import Path
from services.runtime.cluster_identity import write_cluster
os.fsync = lambda _: None  # 800 waits for the disk would make no difference but the time
for _ in range(200):
    write_cluster(Path(sys.argv[1]), "0123456789abcdef")
"""


def test_workers_of_a_shared_state_dir_store_their_cluster_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / CLUSTER_FILE
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert (writer.returncode, errors) == (0, "")
    assert read_cluster(path) == "0123456789abcdef"
    assert [each.name for each in tmp_path.iterdir()] == [CLUSTER_FILE]
