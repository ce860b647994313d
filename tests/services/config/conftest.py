"""A folder with a corpus in it, and no setting of this machine's environment."""

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
    """Where the tests' configs lie; `corpus.txt` of 4,000 characters is beside them."""
    place = tmp_path / "jobs"
    place.mkdir()
    (place / "corpus.txt").write_text("abc " * 1000)
    return place


Load = Callable[..., tuple[JobConfig, list[str]]]


@pytest.fixture
def load(folder: Path) -> Load:
    """Loads a config of these sections, with `data_path` set and a tiny model unless they say otherwise."""

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
    """The line that such a config is refused with."""

    def refused(*overrides: str, **sections: Any) -> str:
        with pytest.raises(Refused) as caught:
            load(*overrides, **sections)
        line = str(caught.value)
        assert "\n" not in line and line.isprintable()
        return line

    return refused
