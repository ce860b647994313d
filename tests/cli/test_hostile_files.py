"""Any file that a command reads may be a pipe, a device, a folder, huge or an alias bomb: it is refused at once."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from cli.main import main
from tests.services.test_yaml_text import LAUGHS, MERGES

LIMIT_SECONDS = 20
"""Far above the second that a refusal takes: the tests' hosts are busy. What waits for a writer waits for ever."""


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a sparse file


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "folder": Path.mkdir,
    "huge file": huge,
    "laughs": lambda path: path.write_text(LAUGHS) and None,
    "merges": lambda path: path.write_text(MERGES) and None,
    "deep JSON": lambda path: path.write_text("[" * 1_000_000) and None,
    "long line": lambda path: path.write_text("\x1b[2J" * 10_000) and None,
}
PLACES = {
    "job": "job.yaml",
    "options": "options.yaml",
    "model": "model.yaml",
    "device": "device.yaml",
    "tokenizer": "tokenizer.json",
    "corpus": "corpus.txt",
    "checkpoint": "stored/config.json",
    "weights": "stored/model.safetensors",
    "state": "stored/state.json",
    "descriptor": "mesh.textproto",
    "old descriptor": "mesh.yaml",
    "certificate": "authority.pem",
}
"""Files that commands read, by what they are to the command."""
FINE = {("corpus", "laughs"), ("corpus", "merges"), ("corpus", "deep JSON"), ("corpus", "long line")}
"""Contents that are a text like any other."""


def job_of(place: str) -> dict[str, object]:
    """Return a job whose config leads to the file at a place."""
    training: dict[str, object] = {"data_path": "corpus.txt", "max_steps": 1}
    job: dict[str, object] = {"training_config": training, "transformer_config": {"num_blocks": 1}}
    if place == "model":
        del job["transformer_config"]
        training["model_config"] = "model.yaml"
    elif place == "device":
        job["device_config"] = "device.yaml"
    elif place == "tokenizer":
        training |= {"tokenizer_type": "bpe", "tokenizer_path": "tokenizer.json"}
    elif place in ("checkpoint", "weights", "state"):
        job["transformer_config"] = {"model_path": "stored"}
    elif place.endswith("descriptor"):
        job["device_config"] = {"mesh_shape": [1, 8], "enable_tp": True}
        job["transformer_config"] = {"num_heads": 8, "embedding_dim": 256, "num_blocks": 1}
    return job


def command(place: str, folder: Path) -> list[str]:
    """Return a command that reads the file at a place."""
    if place == "certificate":
        return ["jobs", "--tls-ca", str(folder / PLACES[place])]
    options = ["--config", str(folder / PLACES[place])] if place == "options" else []
    return ["validate", str(folder / "job.yaml"), *options]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_hostile_files_are_refused_at_once(
    place: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus.txt").write_text("abc " * 1000)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job_of(place)))
    (tmp_path / "stored").mkdir()
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
    (tmp_path / "stored/config.json").write_text(json.dumps(config))
    if place.endswith("descriptor"):
        monkeypatch.setenv("TT_MESH_GRAPH_DESC_PATH", str(tmp_path / PLACES[place]))
    target = tmp_path / PLACES[place]
    target.unlink(missing_ok=True)
    KINDS[kind](target)

    codes: list[int] = []
    start = time.monotonic()
    thread = threading.Thread(target=lambda: codes.append(main(command(place, tmp_path))), daemon=True)
    thread.start()
    thread.join(LIMIT_SECONDS)
    assert codes, f"still reading after {time.monotonic() - start:.0f} s"
    captured = capsys.readouterr()
    if (place, kind) in FINE:
        assert codes == [0], captured.err
        return
    assert codes == [2], captured.err
    (line,) = captured.err.splitlines()
    assert line.isprintable() and len(line) <= 300, line
    assert target.name.partition(".")[0] in line or str(tmp_path)[:20] in line, line
    shutil.rmtree(tmp_path)
