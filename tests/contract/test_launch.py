"""`tiermesh launch` on a mocked LoudBox whose chips are divided between two workers.

A mock computes nothing, so the mesh check of a launch must refuse it. The daemons are then started by the commands that
`--dry-run` prints, and train: shapes, links and placement are real, and all values are zero.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from mesh.descriptors.read import format_textproto
from tests.support.cluster.daemon import eventually
from tests.support.contract.mocked_board import ROOT, missing_requirement, prepare_board
from tests.support.descriptors import describe_meshes
from tests.support.ports import free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(missing_requirement() is not None, reason=missing_requirement() or ""),
]

JOB = """
training_config: {project_name: tiny, seed: 1, model_type: linear_regression, max_steps: 3, batch_size: 4,
                  min_workers: 2}  # one that is late would find the job ended
linear_regression_config: {num_features: 4, num_targets: 2, training_samples: 200}
device_config: {backend: ttnn, mesh_shape: [1, 4], enable_ddp: true}
multihost_config: {enabled: true, num_workers: 2}
"""
HALVES = ("0,1", "2,3")
"""A LoudBox's halves: the numbers count boards of two chips, as its driver does."""
_OWN = ("TT_METAL_MOCK_CLUSTER_DESC_PATH", "TT_METAL_CACHE", "TT_METAL_LOGS_PATH")


class Launch:
    """Two workers, each with half of a mocked LoudBox, and an aggregator.

    Args:
        folder: empty folder for the configuration and the daemons.
    """

    def __init__(self, folder: Path) -> None:
        board = prepare_board("loudbox")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TT_")}
        passed = {name: value for name, value in board.items() if name not in _OWN}
        cache = {"TT_METAL_CACHE": str(folder / "cache"), "TT_METAL_LOGS_PATH": str(folder)}
        self.environment = {**inherited, **passed, **cache, "PYTHONPATH": str(ROOT)}
        self.state = folder / "runs"
        self.port = free_port()
        self.folder = folder / "halves"
        self.folder.mkdir()
        (self.folder / "mgd.textproto").write_text(format_textproto(describe_meshes(3, (1, 4))))
        mock = board["TT_METAL_MOCK_CLUSTER_DESC_PATH"]
        workers = [
            {"rank": rank, "mesh_id": mesh_id, "env_overrides": {"TT_VISIBLE_DEVICES": boards}}
            for rank, (mesh_id, boards) in enumerate(zip((2, 0), HALVES, strict=True))
        ]
        bindings = {
            "rank_bindings": [*workers, {"rank": 2, "mesh_id": 1}],
            "mock_cluster_rank_binding": {0: mock, 1: mock},
        }
        (self.folder / "rank_bindings.yaml").write_text(yaml.safe_dump(bindings))
        (self.folder / "job.yaml").write_text(JOB)

    def command(self, *arguments: str) -> list[str]:
        options = ("--state-dir", str(self.state), "--aggregator-port", str(self.port), "--json")
        job = ("--config", str(self.folder / "job.yaml"))
        return ["launch", str(self.folder), *job, *options, *arguments]

    def run(self, arguments: Sequence[str]) -> tuple[int, dict[str, Any]]:
        """Run a command of Tiermesh to its end; return its exit code and JSON result."""
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
            stdin=subprocess.DEVNULL,
        )
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    @contextmanager
    def daemons(self) -> Iterator[list[Path]]:
        """Start the daemons by the commands of a dry run; yield their folders once they serve."""
        code, plan = self.run(self.command("--dry-run"))
        assert code == 0
        processes, folders = [], []
        try:
            for rank in plan["ranks"]:
                arguments = rank["arguments"][1:]
                folder = Path(arguments[arguments.index("--ready-file") + 1]).parent
                folder.mkdir(parents=True)
                folders.append(folder)
                for path, text in rank["files"].items():
                    Path(path).write_text(text)
                kept = {name: value for name, value in self.environment.items() if name not in rank["unset"]}
                with (folder / "log").open("wb") as log:
                    processes.append(
                        subprocess.Popen(
                            [sys.executable, "-m", "cli.main", *arguments],
                            env={**kept, **rank["environment"]},
                            cwd=folder,
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=log,
                        )
                    )

            def all_ready() -> bool:
                assert all(process.poll() is None for process in processes)
                return all((folder / "ready.json").exists() for folder in folders)

            eventually(all_ready, "the daemons to serve", limit_seconds=120)
            yield folders
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(timeout=60)


def test_the_mesh_check_opens_a_ranks_half_and_finds_that_a_mock_computes_nothing(tmp_path: Path) -> None:
    launch = Launch(tmp_path)
    code, result = launch.run(launch.command())
    assert code == 2
    error = result["error"]
    assert error.startswith(
        "host this machine: rank 0: its mesh fails the check: mesh [1, 4]: the all-reduce"
    )
    assert "mocked devices compute nothing" in error
    assert len(error) <= 300
    assert not list(launch.state.glob("*/*/*/state")), "no daemon was started"


def test_workers_train_on_the_halves_of_a_loudbox_at_the_same_time(tmp_path: Path) -> None:
    launch = Launch(tmp_path)
    with launch.daemons() as folders:
        address = ("--aggregator", f"127.0.0.1:{launch.port}", "--json")
        submitted = launch.run(("submit", str(launch.folder / "job.yaml"), "--follow", *address))
        assert (submitted[0], submitted[1]["state"]) == (0, "succeeded"), submitted
        workers = [folder for folder in folders if "mesh" in folder.name]
        assert len(workers) == len(HALVES)
        for folder in workers:
            assert "opened a mesh of [1, 4], wormhole_b0 (n300_2x2)" in (folder / "log").read_text()
