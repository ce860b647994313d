"""Text from a trained model's checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cli.output import Output
from services.errors import Refused
from services.runtime.process import limit_blas_to_one_thread


def is_language_model(checkpoint: Path) -> bool:
    """Whether a checkpoint of ours is of a model that text can be drawn from."""
    from services.checkpoints.format import STATE_FILE, State

    model = State.load((checkpoint / STATE_FILE).read_bytes()).config["model"]
    return isinstance(model, dict) and model["model_type"] in ("gpt2", "llama")


def generated(checkpoint: Path, prompt: str, output: Output, **settings: Any) -> str:
    """Draw text, shown as it comes; returns it without the prompt.

    Args:
        checkpoint: folder.
        prompt: what the text continues.
        output: where it is shown.
        settings: of `training.generation.generate.generate`.

    Raises:
        Refused: no readable checkpoint of a language model, or settings out of range.
    """
    limit_blas_to_one_thread()
    from training.generation.generate import generate

    pieces = []
    for piece in generate(checkpoint, prompt, **settings):
        output.write(piece)
        pieces.append(piece)
    output.say("")
    return "".join(pieces)


def run(checkpoint: Path, prompt: str, output: Output, **settings: Any) -> None:
    """Print the prompt and its continuation."""
    folder = _checkpoint_folder(checkpoint)
    output.write(prompt)
    text = generated(folder, prompt, output, **settings)
    output.result({"checkpoint": str(folder), "prompt": prompt, "text": text})


def _checkpoint_folder(path: Path) -> Path:
    """The folder that a path means: itself (ours or Hugging Face's) or, of a folder of checkpoints, the newest."""
    from services.checkpoints import list_checkpoints

    if any((path / name).is_file() for name in ("state.json", "config.json")):
        return path
    found = list_checkpoints(path)
    if not found:
        raise Refused(
            f"{path}: no checkpoint; give a folder like step-00000500, one that has such folders, or one that "
            "Hugging Face's tools saved"
        )
    return found[-1]
