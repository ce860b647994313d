"""The last release, which this version works together with: its files, and its own build.

They come from git's objects, since a clone may lack tags. Where they are missing, tests that need them are skipped.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
_HEADING = re.compile(r"^## (\d+\.\d+\.\d+)\n\nCommit `([0-9a-f]{40})`", re.MULTILINE)
_LIMIT_SECONDS = 120.0


class Release(NamedTuple):
    """A released version, and the full id of its commit."""

    version: str
    commit: str


@cache
def find_release() -> Release:
    """Return the newest version whose commit CHANGELOG.md names."""
    found = _HEADING.search((ROOT / "CHANGELOG.md").read_text())
    assert found is not None, "CHANGELOG.md: no `## VERSION` with a line Commit `ID`"
    return Release(*found.groups())


@cache
def extract_release(*paths: str) -> tarfile.TarFile:
    """Return files and folders of the release; without paths, all of it. Skip the test if git lacks the commit."""
    version, commit = find_release()
    try:
        done = subprocess.run(
            ["git", "archive", "--format=tar", commit, *paths],
            cwd=ROOT,
            capture_output=True,
            timeout=_LIMIT_SECONDS,
        )
    except FileNotFoundError:
        pytest.skip(f"the files of {version} come from git, which is not installed")
    if done.returncode:
        (reason, *_) = done.stderr.decode(errors="replace").splitlines() or ["no reason given"]
        pytest.skip(
            f"this clone has no commit {commit} of {version} ({reason}): run `git fetch origin {commit}`, or "
            "`git fetch --unshallow`"
        )
    return tarfile.open(fileobj=io.BytesIO(done.stdout))


def read_release(path: str) -> bytes:
    """Return the content of a file of the release."""
    file = extract_release(path).extractfile(path)
    assert file is not None, path
    return file.read()


def install_release(folder: Path) -> Path:
    """Build the release and install it in an environment of its own, over this one's third-party packages.

    Args:
        folder: new folder of the environment.

    Returns:
        The environment's folder of programs.
    """
    source, environment = folder / "source", folder / "environment"
    extract_release().extractall(source, filter="data")
    # 0.2.0 has numba for speed, which this version has not. Without it numpy computes the same bits there.
    project = source / "pyproject.toml"
    lines = project.read_text().splitlines(keepends=True)
    project.write_text("".join(line for line in lines if '"numba>' not in line))
    venv.create(environment, symlinks=True)
    site = next((environment / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # after what is installed here
    # Without --no-deps, pip checks that these packages are those that the release asks for.
    command = [
        sys.executable, "-m", "pip", "--python", environment / "bin/python", "install", "--quiet", "--no-index",
        "--no-build-isolation", "--disable-pip-version-check", source, source / "sdk",
    ]  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(
        [*map(str, command)], env=kept, capture_output=True, text=True, timeout=_LIMIT_SECONDS
    )
    if "No matching distribution found" in done.stderr:
        pytest.skip(
            f"{find_release().version} needs other third-party packages than this version: "
            f"{done.stderr.splitlines()[-1]}"
        )
    assert done.returncode == 0, done.stderr
    return environment / "bin"
