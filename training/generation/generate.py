"""Generates text from a checkpoint of Tiermesh, or from a Hugging Face GPT-2 or Llama."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh, open_mesh
from services.checkpoints.format import STATE_FILE, Checkpoint
from services.checkpoints.hugging_face import TOKENIZER_FILE
from services.checkpoints.read import (
    read_checkpoint,
)
from services.config.job import JobConfig
from services.config.job_parts import SamplingConfig
from services.config.models import GPT2Config, LlamaConfig
from services.config.pretrained import MODEL_PATH_FIELD
from services.errors import Refused
from services.input_files import NoSuchFile, read_input_file
from services.json_text import TOKENIZER
from services.printable import printable_path
from services.tensors.layout import Layout
from training.data.tokenizer import (
    Tokenizer,
    load_tokenizer,
)
from training.generation.decoding import Decoder
from training.generation.sampling import choose
from training.models.build import (
    build_model,
    load_parameter,
)
from training.models.initialise import (
    build_layout,
)
from training.models.model import (
    TextModel,
)
from training.models.pretrained import open_model
from training.parameter_placement import TILE
from training.seeds import make_generator

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""Character that a decoder returns for the first bytes of an incomplete character."""
_CONTEXT = 5
"""Tokens of the prompt that the first drawn ones are decoded with."""


@dataclass(frozen=True)
class _Source:
    """A model to generate with.

    Attributes:
        config: config of the model.
        vocabulary: number of its tokens.
        tokenizer: its tokenizer.
        sampling: the sampling settings of its job, or the defaults.
        endings: ids that end a text.
        weights: function that returns its weights, float32, flat, given the model's layout.
    """

    config: GPT2Config | LlamaConfig
    vocabulary: int
    tokenizer: Tokenizer
    sampling: SamplingConfig
    endings: frozenset[int]
    weights: Callable[[Layout], npt.NDArray[np.float32]]


def generate(
    folder: Path,
    prompt: str,
    *,
    max_new_tokens: int = 200,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float | None = None,
    seed: int = 0,
) -> Iterator[str]:
    """Continue a text on one device; this process must have no open mesh.

    Settings that are None follow the checkpoint's job.

    Args:
        folder: folder of a checkpoint, or of a GPT-2 or Llama that Hugging Face's tools saved, with its tokenizer.
        prompt: the text to continue; the model sees its last tokens, as many as it has positions.
        max_new_tokens: maximum number of tokens to draw.
        temperature: divisor of the logits; 0 takes the likeliest token.
        top_k: number of likeliest tokens to draw from; 0 for all.
        top_p: probability of the set of likeliest tokens to draw from; 1 for all.
        repetition_penalty: divisor of the logits of tokens seen (factor if the logit is negative); 1 for none.
        seed: seed of the draws; the same seed gives the same text.

    Yields:
        Pieces of text without the prompt, together at most `max_new_tokens` tokens. An ending token stops it earlier.

    Raises:
        Refused: the folder has no intact checkpoint of a language model, or its tokenizer can't encode the prompt.
        ValueError: a setting is out of range.
    """
    source = _checkpoint(folder) if (folder / STATE_FILE).is_file() else _hugging_face(folder)
    given = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "repetition_penalty": repetition_penalty,
    }
    changed = {name: value for name, value in given.items() if value is not None}
    sampling = SamplingConfig.model_validate(source.sampling.model_dump() | changed)
    try:
        ids = source.tokenizer.encode_prompt(prompt)
    except Refused as refused:
        raise Refused(f"prompt: {str(refused).removeprefix('text: ')}") from None
    if not ids:
        raise Refused("prompt: it has no tokens, expected at least one character to continue")
    uniforms = np.random.Generator(make_generator(seed, "generate")).random(max_new_tokens)
    text = Text(source.tokenizer, ids)
    with open_mesh((1, 1)) as mesh:
        decoder = Decoder(mesh, _loaded(source, mesh), _window(source.config, len(ids) + max_new_tokens))
        seen = set(ids)
        for uniform in uniforms:
            token = choose(decoder.logits(ids), seen, sampling, float(uniform))
            if token in source.endings:
                break
            ids.append(token)
            seen.add(token)
            if piece := text.grown():
                yield piece
        if rest := text.grown(at_end=True):
            yield rest


class Text:
    """The text of a growing list of ids, decoded a few tokens at a time.

    Args:
        tokenizer: tokenizer of the text.
        ids: list to which the caller appends. The text of the ids in it at the start is not shown.
    """

    def __init__(self, tokenizer: Tokenizer, ids: list[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = ids
        # A token's text depends on the one before it: a tokenizer may drop a space at the start. So new tokens are
        # decoded together with those shown last.
        self._context = max(0, len(ids) - _CONTEXT)
        self._shown = len(ids)

    def grown(self, at_end: bool = False) -> str:
        """Return the text of the ids not shown yet; empty while their last character is incomplete."""
        before = self._tokenizer.decode(self._ids[self._context : self._shown])
        now = self._tokenizer.decode(self._ids[self._context :])
        if len(now) <= len(before) or (now.endswith(_UNFINISHED) and not at_end):
            return ""
        self._context, self._shown = self._shown, len(self._ids)
        return now[len(before) :]


def _checkpoint(folder: Path) -> _Source:
    checkpoint = read_checkpoint(folder, with_optimizer=False)
    job = JobConfig.from_json(checkpoint.config_json)
    config = job.model
    if not isinstance(config, GPT2Config | LlamaConfig):
        raise Refused(
            f"checkpoint {folder}: model_type {config.model_type} generates no text, expected gpt2 or llama; "
            "give another checkpoint"
        )
    tokenizer = load_tokenizer(_tokenizer_file(checkpoint, folder), str(folder / TOKENIZER_FILE))

    def weights(layout: Layout) -> npt.NDArray[np.float32]:
        _check_layout(checkpoint.layout, layout, folder)
        return checkpoint.weights

    return _Source(config, config.vocab_size or tokenizer.size, tokenizer, job.sampling, frozenset(), weights)


def _tokenizer_file(checkpoint: Checkpoint, folder: Path) -> bytes:
    """Return the tokenizer of a checkpoint; one of token ids has none, unless someone has put it there (Refused)."""
    stored = checkpoint.files.get(TOKENIZER_FILE)
    if stored is not None:
        return stored
    try:
        return read_input_file("checkpoint", folder / TOKENIZER_FILE, TOKENIZER.limit_bytes)
    except NoSuchFile:
        raise Refused(
            f"checkpoint {printable_path(folder)}: no {TOKENIZER_FILE}, since its job has token ids and no "
            "tokenizer_path; copy the tokenizer that made the ids into the folder"
        ) from None


def _hugging_face(folder: Path) -> _Source:
    try:
        stored = open_model(folder)
    except Refused as error:  # the text names the field of a job that starts from such a folder
        raise Refused(f"checkpoint {str(error).removeprefix(f'{MODEL_PATH_FIELD}: ')}") from None
    content = stored.tokenizer_json()
    if content is None or stored.config.vocab_size is None:
        raise Refused(
            f"{folder}: no {TOKENIZER_FILE}, expected the model's tokenizer in the same folder; save it there with "
            "save_pretrained"
        )
    endings = stored.folder.config.get("eos_token_id")
    return _Source(
        stored.config,
        stored.config.vocab_size,
        load_tokenizer(content, str(folder / TOKENIZER_FILE)),
        SamplingConfig(),
        frozenset(endings if isinstance(endings, list) else [] if endings is None else [endings]),
        lambda layout: stored.weights(layout.entries),
    )


def _check_layout(stored: Layout, expected: Layout, folder: Path) -> None:
    found = [(entry.name, entry.shape) for entry in stored.entries]
    wanted = [(entry.name, entry.shape) for entry in expected.entries]
    if found != wanted:
        different = sorted({name for name, _ in set(found) ^ set(wanted)}) or ["their order"]
        raise Refused(
            f"checkpoint {folder}: parameter {different[0]} differs from this release's layout; "
            "use the release that wrote the checkpoint"
        )


def _loaded(source: _Source, mesh: Mesh) -> TextModel:
    # GPT-2 and Llama are both text models.
    model = cast(TextModel, build_model(source.config, source.vocabulary, mesh))
    layout = build_layout(model, decay_all=True)
    weights = source.weights(layout)
    for entry, parameter in zip(layout.entries, model.parameters(), strict=True):
        load_parameter(mesh, parameter, weights[entry.offset : entry.stop])
    return model


def _window(config: GPT2Config | LlamaConfig, tokens: int) -> int:
    """Return the window for so many tokens: whole tiles, at most the model's positions."""
    return min(config.max_sequence_length, -(-tokens // TILE) * TILE)
