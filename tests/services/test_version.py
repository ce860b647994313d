"""Tests of the version that Tiermesh shows."""

from __future__ import annotations

import re
from pathlib import Path

from services.version import UNKNOWN_VERSION, tiermesh_version


def test_installed_version_is_that_of_the_project_file() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    (declared,) = re.findall(r'^version = "(.+)"$', project, re.MULTILINE)
    assert tiermesh_version() == declared


def test_package_for_programs_has_the_same_version() -> None:
    package = (Path(__file__).parents[2] / "sdk" / "tiermesh" / "version.py").read_text()
    assert f'VERSION = "{tiermesh_version()}"' in package


def test_version_without_installation_is_unknown() -> None:
    assert tiermesh_version("no-such-distribution") == UNKNOWN_VERSION
