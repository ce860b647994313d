"""Fixtures: a folder with a corpus, functions that load a config there, and an environment without variables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.config.job import JobConfig
from services.config.load import load_job
from services.errors import Refused


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TT_METAL_HOME", "TT_METAL_RUNTIME_ROOT", "TIERMESH_DATA"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of the tests' configs, with a `corpus.txt` of 4,000 characters."""
    place = tmp_path / "jobs"
    place.mkdir()
    (place / "corpus.txt").write_text("abc " * 1000)
    return place


Load = Callable[..., tuple[JobConfig, list[str]]]
Refuse = Callable[..., str]


@pytest.fixture
def load(folder: Path) -> Load:
    """Return a function that loads a config with the given sections; `data_path` and a default model are added."""

    def load(*overrides: str, **sections: Any) -> tuple[JobConfig, list[str]]:
        training = {"data_path": "corpus.txt", **sections.pop("training_config", {})}
        document = {"training_config": training, **sections}
        if "model_config" not in training and training.get("model_type") is None:
            document.setdefault("transformer_config", {})
        path = folder / "job.yaml"
        path.write_text(yaml.safe_dump(document))
        return load_job(path, overrides)

    return load


@pytest.fixture
def refused(load: Load) -> Callable[..., str]:
    """Return a function that returns the line with which such a config is refused."""

    def refused(*overrides: str, **sections: Any) -> str:
        with pytest.raises(Refused) as caught:
            load(*overrides, **sections)
        line = str(caught.value)
        assert "\n" not in line and line.isprintable()
        return line

    return refused
