"""Text from a checkpoint of a language model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mesh.device import Mesh, open_mesh
from mesh.transfer import download
from services.checkpoints import Checkpoint, read_checkpoint
from services.config import GPT2Config, JobConfig, SamplingConfig
from services.errors import Refused
from worker.autograd import Tape
from worker.data import Tokenizer, load_tokenizer
from worker.models import GPT2, load_parameter, model_layout
from worker.sampling import choose
from worker.seeds import generator

_TOKENIZER_FILE = "tokenizer.json"
_UNFINISHED = "�"
"""What a decoder shows for the first bytes of a character whose last ones are still to come."""


def generate(
    checkpoint_dir: Path,
    prompt: str,
    *,
    max_new_tokens: int = 200,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float | None = None,
    seed: int = 0,
) -> Iterator[str]:
    """Continue a text, piece by piece, on one device; this process must have no mesh open.

    A setting of the draws that is None is as the checkpoint's job has it.

    Args:
        checkpoint_dir: folder of the checkpoint.
        prompt: what to continue; the last tokens that the model has positions for are seen.
        max_new_tokens: tokens to draw.
        temperature: logits are divided by it; 0 takes the likeliest token.
        top_k: only that many likeliest tokens; 0 for all.
        top_p: only the likeliest tokens that make up this probability; 1 for all.
        repetition_penalty: logits of tokens seen are divided by it (multiplied if negative); 1 for none.
        seed: of the draws; the same seed gives the same text.

    Yields:
        Text as it comes, without the prompt; together at most `max_new_tokens` tokens.

    Raises:
        Refused: no intact checkpoint of a language model, or a prompt that its tokenizer can't take.
        ValueError: a setting out of range.
    """
    checkpoint = read_checkpoint(checkpoint_dir, with_optimizer=False)
    job = JobConfig.from_json(checkpoint.config_json)
    given = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "repetition_penalty": repetition_penalty,
    }
    changed = {name: value for name, value in given.items() if value is not None}
    sampling = SamplingConfig.model_validate(job.sampling.model_dump() | changed)
    config, tokenizer = _language_model(checkpoint, job)
    ids = tokenizer.encode(prompt).tolist()
    if not ids:
        raise Refused("prompt: no token in it; expected at least one character to continue")
    uniforms = np.random.Generator(generator(seed, "generate")).random(max_new_tokens)
    shown = len(tokenizer.decode(ids))
    with open_mesh((1, 1)) as mesh:
        model = _load(checkpoint, config, tokenizer.size, mesh)
        for uniform in uniforms:
            ids.append(_next_token(mesh, model, config.max_sequence_length, ids, sampling, float(uniform)))
            text = tokenizer.decode(ids)
            if len(text) > shown and not text.endswith(_UNFINISHED):
                yield text[shown:]
                shown = len(text)
        rest = tokenizer.decode(ids)[shown:]
        if rest:
            yield rest


def _language_model(checkpoint: Checkpoint, job: JobConfig) -> tuple[GPT2Config, Tokenizer]:
    config = job.model
    if not isinstance(config, GPT2Config) or _TOKENIZER_FILE not in checkpoint.files:
        raise Refused(
            f"checkpoint {checkpoint.path}: it is of a {config.model_type} model without a tokenizer; "
            "text comes from gpt2 models"
        )
    return config, load_tokenizer(checkpoint.files[_TOKENIZER_FILE], str(checkpoint.path / _TOKENIZER_FILE))


def _load(checkpoint: Checkpoint, config: GPT2Config, vocabulary: int, mesh: Mesh) -> GPT2:
    model = GPT2(config, vocabulary, mesh)
    found = {entry.name: entry.shape for entry in checkpoint.layout.entries}
    expected = {entry.name: entry.shape for entry in model_layout(model, decay_all=True).entries}
    if list(found.items()) != list(expected.items()):
        different = sorted({name for name, _ in found.items() ^ expected.items()}) or ["their order"]
        raise Refused(
            f"checkpoint {checkpoint.path}: its layout is not this release's, starting with {different[0]}; "
            "use the release that wrote it"
        )
    for entry, parameter in zip(checkpoint.layout.entries, model.parameters(), strict=True):
        load_parameter(mesh, parameter, checkpoint.weights[entry.offset : entry.stop])
    return model


def _next_token(
    mesh: Mesh, model: GPT2, tokens: int, ids: list[int], sampling: SamplingConfig, uniform: float
) -> int:
    # The whole window goes through the model for each token; what comes after the last one is masked anyway.
    window = ids[-tokens:]
    padded = np.zeros((1, tokens), np.uint32)
    padded[0, : len(window)] = window
    logits = model.logits(Tape(mesh, recording=False), padded, len(window) - 1)
    return choose(download(mesh, logits.value).reshape(-1), ids, sampling, uniform)
