"""Decoding with caches gives the logits of the whole text, at the same cost for every token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mesh.emulator as emulator
from mesh.device import Mesh, open_mesh
from mesh.transfer import download
from services.config.job_parts import SamplingConfig
from services.config.models import GPT2Config, LlamaConfig
from training.autograd.tape import Tape
from training.generation.decoding import Decoder
from training.generation.sampling import choose
from training.models.build import (
    build_model,
    load_parameter,
)
from training.models.model import (
    TextModel,
)

WINDOW, VOCABULARY = 64, 37
SIZES: dict[str, Any] = {"num_blocks": 2, "max_sequence_length": WINDOW, "dropout_prob": 0.1}
MODELS: dict[str, Any] = {
    "gpt2": GPT2Config(num_heads=2, embedding_dim=64, **SIZES),
    "gpt2, fixed positions, narrow heads": GPT2Config(
        num_heads=4, embedding_dim=64, positional_embedding_type="fixed", weight_tying=True, **SIZES
    ),
    "llama": LlamaConfig(num_heads=4, num_groups=2, embedding_dim=128, intermediate_dim=64, **SIZES),
    "llama, one group, recomputing": LlamaConfig(
        num_heads=3, num_groups=1, embedding_dim=288, runner_type="memory_efficient", **SIZES
    ),
}


def load_model(mesh: Mesh, config: Any) -> Any:
    random = np.random.default_rng(8)
    model = build_model(config, VOCABULARY, mesh)
    for parameter in model.parameters():
        value = 0.15 * random.standard_normal(parameter.shape) + parameter.initial_mean
        load_parameter(mesh, parameter, value.astype(np.float32).reshape(-1))
    return model


def compute_uncached(mesh: Mesh, model: TextModel, seen: list[int]) -> np.ndarray[Any, Any]:
    """Return the logits after `seen`, computed over the whole text as in training."""
    padded = np.zeros((1, WINDOW), np.uint32)
    padded[0, : len(seen)] = seen
    logits = model.logits(Tape(mesh, recording=False), padded, len(seen) - 1)
    return download(mesh, logits.value).reshape(-1)


def select_seen(ids: list[int], prompt: int) -> list[int]:
    """Return the tokens that the decoder sees: all, until the window is full; then its last half and what follows."""
    if len(ids) <= WINDOW:
        return ids
    half = WINDOW // 2
    begun = max(prompt, WINDOW)
    start = begun - half + 1 + (len(ids) - begun - 1) // (half + 1) * (half + 1)
    return ids[start:]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "prompt", [1, pytest.param(5, marks=pytest.mark.long), 32, pytest.param(64, marks=pytest.mark.long), 90]
)
def test_the_cache_gives_the_logits_of_the_whole_text(mesh: Mesh, name: str, prompt: int):
    model = load_model(mesh, MODELS[name])
    decoder = Decoder(mesh, model, WINDOW)
    random = np.random.default_rng(prompt)
    ids = random.integers(0, VOCABULARY, prompt).tolist()
    for _ in range(80):
        found = decoder.logits(ids)
        seen = ids[-WINDOW:] if len(ids) == prompt else select_seen(ids, prompt)
        np.testing.assert_allclose(found, compute_uncached(mesh, model, seen), rtol=1e-4, atol=1e-4)
        ids.append(int(random.integers(0, VOCABULARY)))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(temperature=0.0),
        SamplingConfig(temperature=0.9, top_k=12, top_p=0.9, repetition_penalty=1.3),
    ],
)
def test_the_same_tokens_are_drawn(mesh: Mesh, name: str, sampling: SamplingConfig):
    model = load_model(mesh, MODELS[name])
    decoder = Decoder(mesh, model, WINDOW)
    ids = [3, 1, 4, 1, 5]
    for uniform in np.random.default_rng(2).random(WINDOW - len(ids)):
        token = choose(decoder.logits(ids), ids, sampling, float(uniform))
        assert token == choose(compute_uncached(mesh, model, ids), ids, sampling, float(uniform))
        ids.append(token)
    assert len(set(ids)) > 5


class CountedEmulator:
    """The emulator, with a record of the calls made to it and the number of elements they returned."""

    __name__ = "mesh.emulator"

    def __init__(self, module: Any, owner: CountedEmulator | None = None) -> None:
        self._module = module
        self._owner = self if owner is None else owner
        self.costs: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if name == "experimental":
            return CountedEmulator(found, self._owner)
        if not callable(found) or isinstance(found, type):
            return found
        return self._count_calls(name, found)

    def _count_calls(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = function(*arguments, **options)
            parts = result if isinstance(result, (list, tuple)) else [result]
            sizes = [part.array.size for part in parts if isinstance(part, emulator.Tensor)]
            self._owner.costs.append((name, sum(sizes)))
            return result

        return call


@pytest.mark.parametrize("name", MODELS)
def test_every_token_costs_the_same(name: str):
    counted = CountedEmulator(emulator)
    with open_mesh((1, 1), module=counted, dtype="float32") as mesh:
        decoder = Decoder(mesh, load_model(mesh, MODELS[name]), WINDOW)
        ids = [1, 2, 3]
        costs = []
        while len(ids) <= WINDOW:
            counted.costs.clear()
            decoder.logits(ids)
            costs.append(list(counted.costs))
            ids.append(7)
    prefill, *tokens = costs
    assert len(tokens) > 50
    assert all(cost == tokens[0] for cost in tokens)
    widest = max(elements for op, elements in tokens[0] if "cache" not in op)
    assert widest <= 8 * max(VOCABULARY, 4 * WINDOW, 4 * 288), "no work over all the window's rows"
    assert sum(elements for _, elements in prefill) > 5 * sum(
        elements for op, elements in tokens[0] if "cache" not in op
    )


def test_a_text_grows_by_one_token(mesh: Mesh):
    decoder = Decoder(mesh, load_model(mesh, MODELS["gpt2"]), WINDOW)
    decoder.logits([1, 2])
    with pytest.raises(ValueError, match=r"4 tokens.*expected 3"):
        decoder.logits([1, 2, 3, 4])
