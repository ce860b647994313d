from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the cache, one for each test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TIERMESH_CACHE", str(folder))
    return folder
