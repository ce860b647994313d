"""`tiermesh launch` of five ranks on an sshd of loopback: its folder, its command, and what is left of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.cluster.daemon import eventually
from tests.support.ports import free_port
from tests.support.sshd import ROOT, Sshd

JOB = """
training_config: {project_name: tiny, seed: 1, model_type: linear_regression, max_steps: 10, batch_size: 4}
linear_regression_config: {num_features: 4, num_targets: 2, training_samples: 200}
device_config: {backend: emulator}
multihost_config: {enabled: true, num_workers: 3}
"""
PIPELINE = """
training_config:
  {{model_type: gpt2, max_steps: 3, batch_size: 1, gradient_accumulation_steps: 4, data_path: "{text}",
  tokenizer_type: char,
  transformer_config: {{num_heads: 2, embedding_dim: 32, num_blocks: 5, max_sequence_length: 32}}}}
device_config: {{backend: emulator}}
multihost_config: {{enabled: true, num_workers: 5, pipeline_parallel_config: {{blocks_per_rank: auto}}}}
"""
"""Job of a pipeline whose stages are all five ranks."""
ENDLESS = ("max_steps=1000000",)
TOO_LARGE = ("linear_regression_config.num_features=1000000", "linear_regression_config.num_targets=1000000")
"""Settings of `JOB` with which it needs many terabytes."""
STEP = re.compile(r"\d\d:\d\d:\d\d  step \d")
"""Line about a step of a job that is followed. A job that ended before has a line with "step" too."""
GONE_SECONDS = 30.0
"""Longest life of a daemon after its launcher's death, by the promise of docs/operate/launch.md."""


def loudboxes(folder: Path, hosts: str) -> Path:
    """Write a configuration folder of five ranks, each with a mesh."""
    folder.mkdir()
    instances = "".join(
        f'  instances {{ mesh {{ mesh_descriptor: "M" mesh_id: {mesh} }} }}\n' for mesh in range(5)
    )
    (folder / "mgd.textproto").write_text(
        'mesh_descriptors { name: "M" arch: WORMHOLE_B0 device_topology { dims: [ 1, 8 ] }'
        " host_topology { dims: [ 1, 1 ] } channels { count: 2 policy: STRICT } }\n"
        f'graph_descriptors {{ name: "G" type: "FABRIC"\n{instances}}}\n'
        'top_level_instance { graph { graph_descriptor: "G" graph_id: 0 } }\n'
    )
    ranks = "".join(f"  - {{rank: {rank}, mesh_id: {mesh}}}\n" for rank, mesh in enumerate((1, 0, 2, 3, 4)))
    (folder / "rank_bindings.yaml").write_text(
        f"rank_bindings:\n{ranks}mesh_graph_desc_path: mgd.textproto\n"
    )
    (folder / "hosts.txt").write_text(hosts)
    (folder / "job.yaml").write_text(JOB)
    return folder


ONE_RANK_EACH = "".join(f"127.0.0.{number} slots=1\n" for number in range(1, 6))
TWO_HOSTS = "127.0.0.1 slots=3\n127.0.0.2 slots=2\n"


def command(sshd: Sshd, *arguments: str) -> list[str]:
    state = str(sshd.folder / "runs")
    return [
        sys.executable, "-m", "cli.main", "launch", "--state-dir", state, "--ssh-config", str(sshd.config),
        "--remote", str(sshd.remote), *arguments,
    ]  # fmt: skip


def job_of(folder: Path, *more: str) -> list[str]:
    ports = ("--aggregator-port", str(free_port()), "--optimizer-port", str(free_port()))
    return [str(folder), "--config", str(folder / "job.yaml"), *ports, *more]


def run(arguments: list[str]) -> tuple[int, dict[str, Any], list[str]]:
    """Run a command to its end; return exit code, JSON result and the lines of standard error."""
    done = subprocess.run(
        [*arguments, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr.splitlines()


@contextmanager
def training(arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a run and yield it after its first step."""
    process = subprocess.Popen(
        arguments,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if STEP.match(line):
                break
        else:
            raise AssertionError(f"ended before its first step: {lines}")
        yield process
    finally:
        process.kill()
        process.wait(timeout=30)
        process.stdout.close()


def processes_of(sshd: Sshd, word: str = "") -> list[int]:
    """Return the ids of the processes of a run: all that name its folder, but for sshd itself and this test."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{sshd.folder}/runs" in text and word in text:
            found.append(int(path.parent.name))
    return found


def wait_until_nothing_is_left(sshd: Sshd, seconds: float = GONE_SECONDS, *, killed: str = "") -> None:
    """Wait until a run has no process and no key, except the keys on a host whose agent was killed."""
    eventually(lambda: not processes_of(sshd), f"the end of {processes_of(sshd)}", seconds)
    keys = [
        key.relative_to(sshd.folder / "runs").parts for key in (sshd.folder / "runs").glob("*/*/**/*.key")
    ]
    assert [parts for parts in keys if parts[1] != killed] == []
