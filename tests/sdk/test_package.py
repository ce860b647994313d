"""The package as programs get it: what it offers, what it costs, and that it gets along with the application."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import tiermesh

ROOT = Path(__file__).parents[2]
MOST_SOURCE_BYTES = 150_000
"""Size of what the wheel installs; the figure `own_loop_installed_bytes` counts the bytecode that pip adds, too."""
MOST_IMPORT_SECONDS = 0.080
"""Largest CPU time of the import, beyond those of numpy and httpx2."""
PROJECT = (ROOT / "pyproject.toml").read_text()
PACKAGES = re.findall(r'"(\w+)\*"', PROJECT)
"""Packages of the application."""

IMPORT = """
import time, sys
import numpy, httpx2
began = time.process_time()
import tiermesh
seconds = time.process_time() - began
print(seconds, *sys.modules)
"""


def run(*command: object, folder: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def public_methods(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }


def test_both_clients_have_the_same_calls() -> None:
    blocking, looping = public_methods(tiermesh.Client), public_methods(tiermesh.AsyncClient)
    assert set(blocking) >= {
        "submit", "jobs", "get", "cancel", "pause", "resume", "continue_", "status", "log", "follow", "wait",
        "metrics", "download",
    }  # fmt: skip
    assert {name: list(each.parameters) for name, each in blocking.items()} == {
        name: list(each.parameters) for name, each in looping.items()
    }
    assert inspect.signature(tiermesh.Client) == inspect.signature(tiermesh.AsyncClient)


@pytest.mark.parametrize("name", tiermesh.__all__)
def test_everything_public_is_described(name: str) -> None:
    found = getattr(tiermesh, name)
    if not callable(found):
        return
    assert inspect.getdoc(found)
    members = public_methods(found) if isinstance(found, type) and not issubclass(found, Exception) else {}
    assert [each for each in members if not inspect.getdoc(getattr(found, each))] == []


def test_the_guide_names_what_there_is() -> None:
    text = (ROOT / "docs" / "use" / "python.md").read_text()
    calls = set(re.findall(r"\bclient\.(\w+)\(", text)) | set(
        re.findall(r"^\| [^|]+ \| `(\w+)`", text, re.MULTILINE)
    )
    assert calls <= {*public_methods(tiermesh.Client), "token"}
    assert set(re.findall(r"\btiermesh\.([A-Za-z]\w*)", text)) <= set(tiermesh.__all__)


def test_versions_are_the_same() -> None:
    (declared,) = re.findall(r'^version = "(.+)"$', PROJECT, re.MULTILINE)
    assert tiermesh.__version__ == declared


def test_the_import_is_cheap_and_loads_nothing_of_the_cluster(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    shutil.copytree(ROOT / "sdk" / "tiermesh", folder / "tiermesh")
    run(sys.executable, "-m", "compileall", "-q", folder)
    runs = [run(sys.executable, "-c", IMPORT, PYTHONPATH=str(folder)).split() for _ in range(3)]
    assert min(float(seconds) for seconds, *_ in runs) <= MOST_IMPORT_SECONDS
    assert not {module.partition(".")[0] for module in runs[0][1:]} & set(PACKAGES)


def test_it_is_small() -> None:
    files = [*(ROOT / "sdk" / "tiermesh").glob("*.py"), ROOT / "sdk" / "README.md"]
    assert sum(each.stat().st_size for each in files) <= MOST_SOURCE_BYTES


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return built wheels by distribution; setuptools writes beside its sources, so it gets copies of them."""
    folder = tmp_path_factory.mktemp("wheels")
    for name in (*PACKAGES, "sdk"):
        unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=unwanted)
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, folder / "source")
    for source in (folder / "source", folder / "source" / "sdk"):
        options = ("--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", folder)
        run(sys.executable, "-m", "pip", "wheel", *options, source)
    return {wheel.name.partition("-")[0]: wheel for wheel in folder.glob("*.whl")}


@pytest.mark.long
class TestInstalled:
    """Package and application in one environment."""

    def test_they_share_no_file(self, wheels: dict[str, Path]) -> None:
        names = {name: set(zipfile.ZipFile(wheel).namelist()) for name, wheel in wheels.items()}
        assert sorted(names) == ["tiermesh", "tiermesh_cluster"]
        assert not names["tiermesh"] & names["tiermesh_cluster"]
        assert {each.partition("/")[0] for each in names["tiermesh"]} == {
            "tiermesh",
            f"tiermesh-{tiermesh.__version__}.dist-info",
        }
        assert "tiermesh/py.typed" in names["tiermesh"]

    @pytest.mark.parametrize("order", [("tiermesh", "tiermesh_cluster"), ("tiermesh_cluster", "tiermesh")])
    def test_either_order(self, wheels: dict[str, Path], order: tuple[str, str], tmp_path: Path) -> None:
        venv.create(tmp_path / "venv", symlinks=True)
        bin_dir = tmp_path / "venv" / "bin"
        site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # after what is installed here
        pip = (sys.executable, "-m", "pip", "-q", "--python", bin_dir / "python")
        for name in order:
            run(*pip, "install", "--no-deps", "--no-index", "--no-compile", wheels[name])

        assert run(bin_dir / "tiermesh", "--version") == f"tiermesh, version {tiermesh.__version__}\n"
        places = "import tiermesh, cli; print(tiermesh.__file__, cli.__file__)"
        assert run(bin_dir / "python", "-c", places, folder=tmp_path).split() == [
            str(site / "tiermesh" / "__init__.py"),
            str(site / "cli" / "__init__.py"),
        ]

        run(*pip, "uninstall", "-y", "tiermesh")
        assert (site / "cli").exists() and (bin_dir / "tiermesh").exists()
        assert not (site / "tiermesh").exists()
