"""A small language model of a user's own whose passes wait until a test lets them.

So a test can do something between two steps of a job, however slow the test or how fast the job is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from training.api import Mesh, Tape, Tokens

MODULE = "tests.support.gated_model"
ALLOWED = ("--allow-models", MODULE)
"""Options of commands that start workers for such a job."""
_SETTINGS = """
training_config: {{data_path: "{text}", project_name: gated, seed: 1, batch_size: 1}}
transformer_config: {{model_type: "{module}:Gated", max_sequence_length: 32, width: 32, gate: "{gate}"}}
"""
_TEXT = "".join(f"{number} comes next.\n" for number in range(200))


class Gate:
    """Named pipe that holds a byte for each pass that may run.

    Args:
        folder: folder for the pipe, the job's config and its text.

    Attributes:
        job_file: config of a job with a pass in each step, and some at its end, that wait at the gate.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "gate"
        os.mkfifo(path)
        self._pipe = os.open(path, os.O_RDWR)
        (folder / "text.txt").write_text(_TEXT)
        self.job_file = folder / "job.yaml"
        self.job_file.write_text(_SETTINGS.format(text=folder / "text.txt", module=MODULE, gate=path))

    def let(self, passes: int) -> None:
        """Let that many more passes run."""
        os.write(self._pipe, bytes(passes))

    def close(self) -> None:
        os.close(self._pipe)


class Gated:
    """Token embeddings and their projection.

    Args:
        options: `width`, and the path of the gate as `gate`.
        vocabulary: number of tokens.
        mesh: mesh to run on.
    """

    def __init__(self, options: dict[str, Any], vocabulary: int, mesh: Mesh) -> None:
        self._options = options
        self._ends = Tokens(
            mesh, vocabulary, options["width"], embedding_export="tokens", projection_export="projection"
        )

    def parameters(self) -> Any:
        yield self._ends.embedding
        yield from self._ends.last_parameters()

    def loss(self, tape: Tape, inputs: Any, targets: Any) -> Any:
        with Path(self._options["gate"]).open("rb", buffering=0) as gate:
            gate.read(1)
        return self._ends.loss(tape, self._ends.embed(tape, inputs), targets)

    def hugging_face_config(self) -> dict[str, Any]:
        return {"model_type": "gated", **self._options}

    def constant_exports(self) -> dict[str, Any]:
        return {}
