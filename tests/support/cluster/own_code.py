"""A small own model of two files that notes each of its builds, and jobs that train it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.cluster.bits import gpt_config

MODEL = """
from pathlib import Path

from training.api import Tokens

from noted_parts import VERSION


class Noted:
    def __init__(self, options, vocabulary, mesh):
        with Path(options["notes"]).open("a") as notes:
            notes.write(f"{VERSION}\\n")
        self.options = options
        self.ends = Tokens(
            mesh, vocabulary, options["width"], embedding_export="tokens", projection_export="projection"
        )

    def parameters(self):
        yield self.ends.embedding
        yield from self.ends.last_parameters()

    def loss(self, tape, inputs, targets):
        return self.ends.loss(tape, self.ends.embed(tape, inputs), targets)

    def hugging_face_config(self):
        return {"model_type": "noted", **self.options}

    def constant_exports(self):
        return {}
"""


def write_model(folder: Path, version: int) -> Path:
    """Write the model's two files; return their folder."""
    folder.mkdir(exist_ok=True)
    (folder / "noted.py").write_text(MODEL)
    (folder / "noted_parts.py").write_text(f"VERSION = {version}\n")
    return folder


def noted_config(corpus: Path, notes: Path, **training: Any) -> dict[str, Any]:
    """Return a job that trains the model, whose builds append their version to the file `notes`."""
    config = gpt_config(corpus, **{"project_name": notes.name, **training})
    config["transformer_config"] = {
        "model_type": "noted:Noted",
        "max_sequence_length": 32,
        "width": 32,
        "notes": str(notes),
    }
    return config


def read_notes(notes: Path) -> list[int]:
    """Return the versions of the builds so far, in order."""
    return [int(line) for line in notes.read_text().split()] if notes.exists() else []
