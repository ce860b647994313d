"""One minor version of skew: clusters of this version's processes and those of the last release's own build.

    package ── web ──┬── aggregator ──┬── worker
                command               └── optimizer

Processes that speak to each other are of different versions. A second cluster has the versions exchanged, so that each
pair meets in both ways; so do aggregator and shard. Then this version's processes replace those of the release, on the
files that these have left.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from services.config.load import load_job
from services.runtime.launcher import Spawn, spawn_subprocess
from tests.support.cluster.bits import Bits, bits, gpt_config, write_config
from tests.support.cluster.daemon import LIMIT_SECONDS, Daemon, environment, tiermesh
from tests.support.cluster.harness import Cluster
from tests.support.release import find_release, install_release

pytestmark = pytest.mark.long

STEPS = 3
PROGRAM = """
import json, sys
import tiermesh
url, token, config, folder = sys.argv[1:]
with tiermesh.Client(url, token=token) as client:
    job = client.submit(config)
    kinds = [event.kind for event in client.follow(job.id)]
    ended = client.wait(job.id)
    place = client.download(job.id, folder)
    print(json.dumps({
        "version": tiermesh.__version__, "job": job.id, "kinds": kinds, "sha256": ended.model_sha256,
        "steps": len(client.metrics(job.id, ["loss"])["loss"]), "workers": list(client.status().workers),
        "files": sorted(each.name for each in place.iterdir()),
    }))
"""


class Build(NamedTuple):
    """An installed version.

    Attributes:
        version: its version.
        python: its environment's interpreter.
        command: runs its command to its end.
        spawn: starts its daemons; None for the fork server.
    """

    version: str
    python: Path
    command: Callable[..., subprocess.CompletedProcess[str]]
    spawn: Spawn | None

    def run_program(self, folder: Path, *arguments: object) -> dict[str, object]:
        """Return what PROGRAM prints that uses this version's package."""
        folder.mkdir()
        done = run([str(self.python), "-c", PROGRAM, *map(str, arguments), str(folder)], folder)
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found


def own_environment() -> dict[str, str]:
    """Return the environment of a process that imports what its interpreter has installed."""
    return {name: value for name, value in environment().items() if name != "PYTHONPATH"}


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=own_environment(), capture_output=True, text=True, timeout=LIMIT_SECONDS
    )


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("release")
    programs = install_release(folder)
    name = str(programs / "tiermesh")

    def command(*arguments: object) -> subprocess.CompletedProcess[str]:
        return run([name, *map(str, arguments)], folder)

    def spawn(words: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        assert words[:3] == [sys.executable, "-m", "cli.main"]
        return spawn_subprocess([name, *words[3:]], log, environment=own_environment(), folder=folder)

    return Build(find_release().version, programs / "python", command, spawn)


@pytest.fixture(scope="module")
def present() -> Build:
    version = tiermesh("--version").stdout.split()[-1]
    return Build(version, Path(sys.executable), tiermesh, None)


@pytest.fixture(scope="module")
def config(corpus: Path) -> Path:
    """Return a short job's YAML file."""
    fields = gpt_config(corpus, project_name="skewed", max_steps=STEPS, gradient_accumulation_steps=2)
    return write_config(corpus.parent, fields)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, config: Path) -> Bits:
    """Return the job's result in this version alone."""
    job, _ = load_job(config, [])
    with Cluster(tmp_path_factory.mktemp("alone"), workers=1) as cluster:
        return bits(cluster.finish(cluster.submit(job.to_json())))


each_aggregator = pytest.mark.parametrize(
    "inner_is_released", [True, False], ids=["old-aggregator", "new-aggregator"]
)


@each_aggregator
def test_neighbours_of_different_versions_give_the_bits_of_one(
    tmp_path: Path, config: Path, release: Build, present: Build, alone: Bits, inner_is_released: bool
) -> None:
    assert release.command("--version").stdout == f"tiermesh, version {release.version}\n"
    inner, outer = (release, present) if inner_is_released else (present, release)
    spawns = {"aggregator": inner.spawn, "optimizer": outer.spawn, "worker": outer.spawn, "web": outer.spawn}
    with Cluster(tmp_path, tiers=3, workers=1, spawns=spawns) as cluster:
        address, kept = ("--aggregator", cluster.to_aggregator.address), tmp_path / "web-token"
        options = (*address, "--state-dir", tmp_path / "web", "--token-file", kept)
        web = Daemon("web", "web", tmp_path, *options, spawn=outer.spawn)
        cluster.daemons.append(web)
        web.ready()

        done = outer.command("submit", config, "--follow", "--json", *address)
        assert done.returncode == 0, done.stderr
        first = json.loads(done.stdout.splitlines()[-1])
        assert bits(cluster.job(first["job"])) == alone
        shown = outer.command("metrics", first["job"], "--csv", *address).stdout.splitlines()
        assert len(shown) == 1 + STEPS, shown
        assert "worker worker-1: " in outer.command("status", *address).stdout

        url, token = f"http://127.0.0.1:{web.port}", kept.read_text().strip()
        second = inner.run_program(tmp_path / "program", url, token, config)
        assert bits(cluster.job(str(second["job"]))) == alone
        assert second["version"] == inner.version
        assert (second["steps"], second["workers"]) == (STEPS, ["worker-1"])
        kinds, files = second["kinds"], second["files"]
        assert isinstance(kinds, list) and {"state", "step"} <= {*kinds}, kinds
        assert isinstance(files, list) and "model.safetensors" in files, files

        # An upgrade in the order of docs/operate/operations.md.
        cluster.spawns.clear()
        stale = (
            [cluster.aggregator] if inner_is_released else [cluster.serving("optimizer"), cluster.workers[0]]
        )
        for daemon in stale:
            assert daemon.terminate() == 0
        if inner_is_released:
            cluster.start_aggregator()
        else:
            cluster.start_optimizer()
            cluster.start_worker()
        again = tiermesh("metrics", first["job"], "--csv", *address)
        assert again.stdout.splitlines() == shown, again.stderr
        done = tiermesh("continue", first["job"], "--steps", STEPS + 1, "--follow", "--json", *address)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["step"] == STEPS + 1


@each_aggregator
def test_a_shard_of_another_version_gives_the_bits_of_one(
    tmp_path: Path, config: Path, release: Build, alone: Bits, inner_is_released: bool
) -> None:
    spawns = {"aggregator" if inner_is_released else "shard": release.spawn}
    with Cluster(tmp_path, workers=1, shards=1, spawns=spawns) as cluster:
        assert bits(cluster.finish(cluster.submit(load_job(config, [])[0].to_json()))) == alone
