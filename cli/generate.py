"""`tiermesh generate`: text from the checkpoint of a language model."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from cli.output import Output
from services.errors import Refused
from services.runtime.process import limit_blas_to_one_thread

_DEEPER = ("*", "checkpoints/*")
"""Where folders of jobs are in a folder of checkpoints and in a state dir."""


def can_generate(checkpoint: Path) -> bool:
    """Return whether a checkpoint that Tiermesh wrote holds a language model with a tokenizer."""
    from services.checkpoints.format import STATE_FILE, State
    from services.checkpoints.hugging_face import TOKENIZER_FILE

    model = State.read(checkpoint / STATE_FILE).config["model"]
    is_language_model = isinstance(model, dict) and model["model_type"] in ("gpt2", "llama")
    return is_language_model and (checkpoint / TOKENIZER_FILE).is_file()


def generate_text(
    checkpoint: Path, prompt: str, output: Output, *, shows_prompt: bool = False, **settings: Any
) -> str:
    """Generate text, print it token by token, and return it without the prompt.

    Args:
        checkpoint: folder of the checkpoint.
        prompt: text to continue.
        output: where the text goes.
        shows_prompt: whether to print the prompt before it, once nothing is refused any more.
        settings: keyword arguments of `training.generation.generate.generate`.

    Raises:
        Refused: `checkpoint` holds no readable language model, or a setting is out of range.
    """
    limit_blas_to_one_thread()
    from training.generation.generate import generate

    output.announce("reading the model")
    pieces: list[str] = []
    for piece in itertools.chain(generate(checkpoint, prompt, **settings), [""]):
        if shows_prompt and not pieces:
            output.write(prompt)
        output.write(piece)
        pieces.append(piece)
    output.say("")
    return "".join(pieces)


def run(checkpoint: Path, prompt: str, output: Output, **settings: Any) -> None:
    """Print the prompt and its continuation."""
    folder = _checkpoint_folder(checkpoint)
    text = generate_text(folder, prompt, output, shows_prompt=True, **settings)
    output.result({"checkpoint": str(folder), "prompt": prompt, "text": text})


def _checkpoint_folder(path: Path) -> Path:
    """Return `path` if it is a checkpoint (ours or Hugging Face's), else the newest checkpoint in it."""
    from services.checkpoints.read import (
        list_checkpoints,
    )

    if any((path / name).is_file() for name in ("state.json", "config.json")):
        return path
    found = list_checkpoints(path)
    if not found:
        jobs = [each.parent for depth in _DEEPER for each in path.glob(f"{depth}/step-*")]
        raise Refused(
            f"{path}: no checkpoint found; give "
            + (
                f"the folder of a job below it, such as {max(jobs)}"
                if jobs
                else "a folder like step-00000500, a folder that contains such folders, or a model saved by "
                "Hugging Face's tools"
            )
        )
    return found[-1]
