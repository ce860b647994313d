"""The parameters of a model, part by part, from its config alone: names, shapes and numbers, without building it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from services.config.models import (
    AnyModelConfig,
    GPT2Config,
    LinearRegressionConfig,
    LlamaConfig,
    MLPConfig,
    OwnConfig,
    RegressionConfig,
)


@dataclass(frozen=True)
class ParameterShape:
    """Shape of a parameter.

    Attributes:
        shape: logical shape, as in the layout and in checkpoints.
        cut: dimension that tensor-parallel devices share out; None if each device has the whole.
    """

    shape: tuple[int, ...]
    cut: int | None = None


@dataclass(frozen=True)
class ModelPart:
    """A part of a model, which the model has once or, as a block, several times.

    Attributes:
        name: `embeddings`, `blocks`, `norm`, `projection` or `layers`.
        copies: how often the model has it.
        prefix: start of its parameters' names in checkpoints, with `{}` for the number of the copy.
        shapes: shapes by the rest of the name.
    """

    name: str
    copies: int
    prefix: str
    shapes: Mapping[str, ParameterShape]

    @property
    def elements(self) -> int:
        """Number of elements of all copies."""
        return self.copies * sum(prod(each.shape) for each in self.shapes.values())

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and logical shape of each parameter of each copy."""
        for copy in range(self.copies):
            for name, each in self.shapes.items():
                yield self.prefix.format(copy) + name, each.shape


def count_parameters(model: AnyModelConfig, vocabulary: int) -> int | None:
    """Return the number of a model's parameters; None for a user's own model, which only a worker can build.

    Args:
        model: config of the model.
        vocabulary: number of tokens, without the padding that a mesh adds; regression models have none.
    """
    if isinstance(model, OwnConfig):
        return None
    return sum(part.elements for part in model_parts(model, vocabulary))


def count_largest(model: AnyModelConfig, vocabulary: int) -> int:
    """Return the number of elements of a model's largest parameter; see `count_parameters` for the arguments.

    For a user's own model it is 0, as only a worker can build it.
    """
    if isinstance(model, OwnConfig):
        return 0
    return max(prod(each.shape) for part in model_parts(model, vocabulary) for each in part.shapes.values())


def model_parts(model: GPT2Config | LlamaConfig | RegressionConfig, vocabulary: int) -> tuple[ModelPart, ...]:
    """Return the parts of a model in the order of the forward pass; see `count_parameters` for the arguments."""
    match model:
        case GPT2Config():
            return _gpt2_parts(model, vocabulary)
        case LlamaConfig():
            return _llama_parts(model, vocabulary)
        case LinearRegressionConfig():
            widths = (model.num_features, model.num_targets)
            return (ModelPart("layers", 1, "", _linear(*widths, bias=model.bias)),)
        case MLPConfig():
            return _mlp_parts(model)


def _gpt2_parts(model: GPT2Config, vocabulary: int) -> tuple[ModelPart, ...]:
    width, bias = model.embedding_dim, model.bias
    table = ParameterShape((vocabulary, width), cut=0)
    embeddings = {"wte.weight": table}
    if model.positional_embedding_type == "trainable":
        embeddings["wpe.weight"] = ParameterShape((model.max_sequence_length, width))
    norm = _linear(width, bias=bias)
    block = {
        "ln_1": norm,
        "attn.c_attn": _linear(width, 3 * width, bias=bias, cut=1),
        "attn.c_proj": _linear(width, width, bias=bias, cut=0),
        "ln_2": norm,
        "mlp.c_fc": _linear(width, 4 * width, bias=bias, cut=1),
        "mlp.c_proj": _linear(4 * width, width, bias=bias, cut=0),
    }
    named = {f"{layer}.{name}": each for layer, shapes in block.items() for name, each in shapes.items()}
    return (
        ModelPart("embeddings", 1, "transformer.", embeddings),
        ModelPart("blocks", model.num_blocks, "transformer.h.{}.", named),
        ModelPart("norm", 1, "transformer.ln_f.", norm),
        ModelPart("projection", 1, "", {} if model.weight_tying else {"lm_head.weight": table}),
    )


def _llama_parts(model: LlamaConfig, vocabulary: int) -> tuple[ModelPart, ...]:
    width, inner = model.embedding_dim, model.feed_forward_width
    shared = model.num_groups * model.head_width
    table, norm = ParameterShape((vocabulary, width), cut=0), ParameterShape((width,))
    block = {
        "input_layernorm": norm,
        "self_attn.q_proj": ParameterShape((width, width), cut=0),
        "self_attn.k_proj": ParameterShape((shared, width), cut=0),
        "self_attn.v_proj": ParameterShape((shared, width), cut=0),
        "self_attn.o_proj": ParameterShape((width, width), cut=1),
        "post_attention_layernorm": norm,
        "mlp.gate_proj": ParameterShape((inner, width), cut=0),
        "mlp.up_proj": ParameterShape((inner, width), cut=0),
        "mlp.down_proj": ParameterShape((width, inner), cut=1),
    }
    named = {f"{layer}.weight": each for layer, each in block.items()}
    return (
        ModelPart("embeddings", 1, "model.", {"embed_tokens.weight": table}),
        ModelPart("blocks", model.num_blocks, "model.layers.{}.", named),
        ModelPart("norm", 1, "model.", {"norm.weight": norm}),
        ModelPart("projection", 1, "", {} if model.weight_tying else {"lm_head.weight": table}),
    )


def _mlp_parts(model: MLPConfig) -> tuple[ModelPart, ...]:
    widths = (model.input_features, *model.hidden_features, model.output_features)
    last = len(widths) - 2
    shapes: dict[str, ParameterShape] = {}
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        # Devices share the outputs of one layer and the inputs of the next; a last layer without a partner is whole.
        cut = 0 if index % 2 else None if index == last else 1
        layer = _linear(inputs, outputs, bias=model.bias, cut=cut)
        shapes |= {f"layers.{index}.{name}": each for name, each in layer.items()}
    return (ModelPart("layers", 1, "", shapes),)


def _linear(*shape: int, bias: bool, cut: int | None = None) -> dict[str, ParameterShape]:
    """Return weight and bias of a layer whose outputs are the last dimension; a bias is cut as the outputs are."""
    layer = {"weight": ParameterShape(shape, cut)}
    if bias:
        layer["bias"] = ParameterShape(shape[-1:], 0 if cut == 1 else None)
    return layer
