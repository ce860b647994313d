"""Tiermesh's version, for `tiermesh --version` and everything else that shows it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version

DISTRIBUTION = "tiermesh-cluster"
UNKNOWN_VERSION = "0+unknown"
"""Version of a checkout that is on the path without being installed. A valid version below every release (PEP 440)."""


def tiermesh_version(distribution: str = DISTRIBUTION) -> str:
    """Return the installed version of Tiermesh, or `UNKNOWN_VERSION` if it is not installed."""
    try:
        return distribution_version(distribution)
    except PackageNotFoundError:
        return UNKNOWN_VERSION
