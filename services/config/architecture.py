"""Model config and expected tensors of a Hugging Face checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from services.config.models import GPT2Config, LlamaConfig
from services.config.parameters import model_parts
from services.config.refusals import format_value
from services.errors import Refused
from services.printable import one_line, printable_path

PretrainableConfig = GPT2Config | LlamaConfig
"""Config of a model that a job can start from a checkpoint."""

NORM_EPSILON = 1e-5
"""Term that our layer norms and RMS norms add to the variance."""

_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
_BUFFERS = re.compile(
    r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias|model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
)
"""Constants that older checkpoints store with the weights."""
_PREFIX = {"gpt2": "transformer.", "llama": "model."}
"""Prefix of tensor names that checkpoints without the language model's head omit."""


def read_architecture(config: Mapping[str, Any], path: Path) -> PretrainableConfig:
    """Return the model config that a `config.json` describes.

    Args:
        config: content of the file.
        path: path of the file, for errors.

    Raises:
        Refused: a field has a value that our models don't support; the first such field is named.
    """
    reader = _READERS.get(str(config.get("model_type")))
    if reader is None:
        _refuse(path, config, "model_type", "gpt2 or llama, the models that a job can start from")
    try:
        return reader(config, path)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        rule = first.get("ctx", {}).get("error")  # from a validator, which has the whole text
        reason = str(rule or f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}")
        raise Refused(
            f"{printable_path(path)}: {one_line(reason)}; or start from another checkpoint"
        ) from None


def expected_tensors(model: PretrainableConfig) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the tensors that training starts from, in Hugging Face's names and layout.

    Args:
        model: config with a `vocab_size`.
    """
    return {
        name: shape for part in model_parts(model, model.vocab_size or 0) for name, shape in part.tensors()
    }


def stored_name(name: str, model: PretrainableConfig, stored: Mapping[str, Any]) -> str:
    """Return a tensor's name in a checkpoint: the expected one, or without the prefix of models with a head."""
    bare = name.removeprefix(_PREFIX[model.model_type])
    return bare if name not in stored and bare in stored else name


def may_be_ignored(name: str, model: PretrainableConfig) -> bool:
    """Return whether a checkpoint may have a tensor for which the model has no parameter."""
    if _BUFFERS.fullmatch(name) or (model.weight_tying and name == "lm_head.weight"):
        return True
    if not isinstance(model, GPT2Config):
        return False
    # Tiermesh's checkpoints add what Hugging Face's GPT-2 requires: zero biases and fixed positions.
    unbiased = not model.bias and name.endswith(".bias")
    return unbiased or (model.positional_embedding_type == "fixed" and name.endswith("wpe.weight"))


def may_have_more_rows(name: str) -> bool:
    """Return whether a checkpoint's tensor may have more rows than the model, which then takes the first ones.

    This is allowed for learned positions beyond the job's sequence length.
    """
    return name == "transformer.wpe.weight"


def _gpt2(config: Mapping[str, Any], path: Path) -> GPT2Config:
    width = config.get("n_embd", 768)
    _check_field(path, config, "n_inner", None, None, 4 * width if isinstance(width, int) else None)
    _check_field(path, config, "layer_norm_epsilon", NORM_EPSILON, NORM_EPSILON)
    _check_field(path, config, "scale_attn_weights", True, True)
    _check_field(path, config, "scale_attn_by_inverse_layer_idx", False, False)
    activation = config.get("activation_function", "gelu_new")
    if activation not in _ACTIVATIONS:
        _refuse(path, config, "activation_function", f"one of: {', '.join(_ACTIVATIONS)}")
    return GPT2Config.model_validate(
        {
            "num_heads": config.get("n_head", 12),
            "embedding_dim": width,
            "num_blocks": config.get("n_layer", 12),
            "max_sequence_length": config.get("n_positions", 1024),
            "vocab_size": config.get("vocab_size", 50257),
            "weight_tying": config.get("tie_word_embeddings", True),
            "activation": _ACTIVATIONS[activation],
            "dropout_prob": _number(config.get("resid_pdrop", 0.1)),
        }
    )


def _llama(config: Mapping[str, Any], path: Path) -> LlamaConfig:
    heads, width = config.get("num_attention_heads", 32), config.get("hidden_size", 4096)
    _check_field(path, config, "rms_norm_eps", 1e-6, NORM_EPSILON)
    _check_field(path, config, "hidden_act", "silu", "silu")
    _check_field(path, config, "attention_bias", False, False)
    _check_field(path, config, "mlp_bias", False, False)
    fitting = width // heads if isinstance(width, int) and isinstance(heads, int) and heads > 0 else None
    _check_field(path, config, "head_dim", None, None, fitting)
    groups = config.get("num_key_value_heads")
    # Since transformers 5 `rope_parameters` has the base (theta) as well as the scaling.
    rotation = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rotation, Mapping):
        _refuse(path, config, "rope_scaling", "a mapping or null")
    theta = rotation.get("rope_theta", config.get("rope_theta", 10000.0))
    return LlamaConfig.model_validate(
        {
            "num_heads": heads,
            "num_groups": heads if groups is None else groups,
            "embedding_dim": width,
            "intermediate_dim": config.get("intermediate_size", 11008),
            "num_blocks": config.get("num_hidden_layers", 32),
            "max_sequence_length": config.get("max_position_embeddings", 2048),
            "vocab_size": config.get("vocab_size", 32000),
            "theta": _number(theta),
            "dropout_prob": 0.0,
            "rope_scaling": _rope_scaling(rotation, path),
            "weight_tying": config.get("tie_word_embeddings", False),
        }
    )


_READERS: dict[str, Callable[[Mapping[str, Any], Path], PretrainableConfig]] = {
    "gpt2": _gpt2,
    "llama": _llama,
}


def _rope_scaling(rotation: Mapping[str, Any], path: Path) -> dict[str, Any] | None:
    kind = rotation.get("rope_type", rotation.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        _refuse(path, rotation, "rope_type", "default or llama3", "rope_scaling.")
    return {
        "scaling_factor": _number(rotation.get("factor")),
        "high_freq_factor": _number(rotation.get("high_freq_factor")),
        "low_freq_factor": _number(rotation.get("low_freq_factor")),
        "original_context_length": rotation.get("original_max_position_embeddings"),
    }


def _check_field(path: Path, config: Mapping[str, Any], field: str, default: Any, *expected: Any) -> None:
    if config.get(field, default) not in expected:
        _refuse(
            path,
            config,
            field,
            " or ".join(format_value(value) for value in expected if value is not None),
            default=default,
        )


def _refuse(
    path: Path, config: Mapping[str, Any], field: str, expected: str, prefix: str = "", default: Any = None
) -> NoReturn:
    raise Refused(
        f"{printable_path(path)}: {prefix}{field} is {format_value(config.get(field, default))}, expected {expected}; "
        "start from another checkpoint"
    )


def _number(value: Any) -> Any:
    """Return an integer as float: JSON may write 500000.0 as 500000."""
    return float(value) if type(value) is int else value
