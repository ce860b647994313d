"""GPT-2 and Llama in numpy, float64, written from their publications, with weights from a Hugging Face folder.

The module shares no code with what it checks: it reads `config.json` and `model.safetensors` itself.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[np.float64]


def logits(folder: Path, ids: NDArray[np.integer[Any]]) -> Array:
    """Return the logits [tokens, vocabulary] of one sequence of ids."""
    config = json.loads((folder / "config.json").read_text())
    tensors = {
        name: tensor.astype(np.float64) for name, tensor in load_file(folder / "model.safetensors").items()
    }
    model = {"gpt2": _gpt2, "llama": _llama}[config["model_type"]]
    return model(config, tensors, ids)


def _gpt2(config: dict[str, Any], tensors: dict[str, Array], ids: NDArray[np.integer[Any]]) -> Array:
    def affine(x: Array, name: str) -> Array:
        return x @ tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def norm(x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + config["layer_norm_epsilon"])
        result: Array = scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]
        return result

    heads = config["n_head"]
    x = tensors["transformer.wte.weight"][ids] + tensors["transformer.wpe.weight"][: len(ids)]
    for block in range(config["n_layer"]):
        at = f"transformer.h.{block}."
        query, key, value = np.split(affine(norm(x, at + "ln_1"), at + "attn.c_attn"), 3, axis=-1)
        x = x + affine(
            _attend(_heads(query, heads), _heads(key, heads), _heads(value, heads)), at + "attn.c_proj"
        )
        inner = affine(norm(x, at + "ln_2"), at + "mlp.c_fc")
        x = x + affine(_GELU[config["activation_function"]](inner), at + "mlp.c_proj")
    head = "transformer.wte.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return norm(x, "transformer.ln_f") @ tensors[head].T


def _llama(config: dict[str, Any], tensors: dict[str, Array], ids: NDArray[np.integer[Any]]) -> Array:
    def linear(x: Array, name: str) -> Array:
        return x @ tensors[f"{name}.weight"].T

    def norm(x: Array, name: str) -> Array:
        scale = np.sqrt((x**2).mean(-1, keepdims=True) + config["rms_norm_eps"])
        result: Array = x / scale * tensors[f"{name}.weight"]
        return result

    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    width = config["hidden_size"] // heads
    angles = np.arange(len(ids))[:, None] * _frequencies(config, width)[None, :]
    angles = np.concatenate([angles, angles], axis=-1)

    def rotate(x: Array) -> Array:
        turned = np.concatenate([-x[..., width // 2 :], x[..., : width // 2]], axis=-1)
        result: Array = x * np.cos(angles) + turned * np.sin(angles)
        return result

    x = tensors["model.embed_tokens.weight"][ids]
    for block in range(config["num_hidden_layers"]):
        at = f"model.layers.{block}."
        entering = norm(x, at + "input_layernorm")
        query = rotate(_heads(linear(entering, at + "self_attn.q_proj"), heads))
        key = rotate(_heads(linear(entering, at + "self_attn.k_proj"), groups))
        value = _heads(linear(entering, at + "self_attn.v_proj"), groups)
        shared = [np.repeat(part, heads // groups, axis=0) for part in (key, value)]
        x = x + linear(_attend(query, *shared), at + "self_attn.o_proj")
        entering = norm(x, at + "post_attention_layernorm")
        gate = linear(entering, at + "mlp.gate_proj")
        inner = gate / (1 + np.exp(-gate)) * linear(entering, at + "mlp.up_proj")
        x = x + linear(inner, at + "mlp.down_proj")
    head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return linear(norm(x, "model.norm"), head)


def _frequencies(config: dict[str, Any], width: int) -> Array:
    """Return radians per token of each pair of columns, scaled as in Llama 3.1 if the config asks for it."""
    frequencies = config["rope_theta"] ** (-np.arange(0, width, 2) / width)
    scaling = config["rope_scaling"]
    if scaling is None:
        result: Array = frequencies
        return result
    assert scaling["rope_type"] == "llama3"
    context = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    stretched = []
    for frequency in frequencies:
        turns = context * frequency / (2 * math.pi)
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        stretched.append((1 - share) * frequency / scaling["factor"] + share * frequency)
    return np.array(stretched)


def _heads(x: Array, heads: int) -> Array:
    """Return [heads, tokens, width of a head]."""
    return x.reshape(len(x), heads, -1).transpose(1, 0, 2)


def _attend(query: Array, key: Array, value: Array) -> Array:
    """Return [tokens, heads x width]; each token attends to itself and earlier ones."""
    tokens, width = query.shape[1:]
    scores = query @ key.transpose(0, 2, 1) / math.sqrt(width)
    scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    result: Array = (shares @ value).transpose(1, 0, 2).reshape(tokens, -1)
    return result


def _gelu(x: Array) -> Array:
    result: Array = x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    return result


def _gelu_tanh(x: Array) -> Array:
    result: Array = x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    return result


_GELU = {"gelu": _gelu, "gelu_new": _gelu_tanh}
