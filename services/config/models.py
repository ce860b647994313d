"""Configs of the models that a job may train, one frozen record each, with the keys of tt-train's model configs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, JsonValue, Tag, model_validator

from services.config.field_types import (
    LARGEST_FLOAT,
    BlockCount,
    ConfigRecord,
    ElementCount,
    HeadCount,
    NonNegativeFloat,
    PositiveFloat,
    Probability,
    SampleCount,
    SequenceLength,
    Width,
)
from services.config.options import DEEPEST_OPTION, is_plain
from services.config.refusals import format_value
from services.errors import Refused

RunnerType = Literal["default", "memory_efficient"]
"""`memory_efficient` keeps only a block's input, and recomputes the block in the backward pass."""

MOST_OWN_PARAMETERS = 1 << 27
"""Default of `max_parameters`: 512 MiB of float32, room for a GPT-2 small."""
_INTERMEDIATE_MULTIPLE = 256


class GPT2Config(ConfigRecord):
    """A GPT-2, with the keys of tt-train's `transformer_config`.

    Attributes:
        model_type: discriminator of the model configs.
        num_heads: attention heads of a block; divides `embedding_dim`.
        embedding_dim: width of the residual stream.
        num_blocks: number of transformer blocks.
        max_sequence_length: tokens of a training sequence, and positions of the model.
        vocab_size: rows of the token embedding; None: as many as the tokenizer has tokens.
        dropout_prob: dropout probability of embeddings, attention and residuals.
        weight_tying: whether the output projection is the token embedding.
        positional_embedding_type: learned positions (`trainable`), or `fixed` sinusoids.
        bias: whether linear layers and layer norms have one.
        activation: the exact gelu, or its tanh approximation.
        runner_type: what the forward pass keeps for the backward pass.
    """

    model_type: Literal["gpt2"] = "gpt2"
    num_heads: HeadCount = 6
    embedding_dim: Width = 384
    num_blocks: BlockCount = 6
    max_sequence_length: SequenceLength = 128
    vocab_size: Width | None = None
    dropout_prob: Probability = 0.2
    weight_tying: bool = False
    positional_embedding_type: Literal["trainable", "fixed"] = "trainable"
    bias: bool = True
    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    runner_type: RunnerType = "default"

    @property
    def head_width(self) -> int:
        """Width of an attention head."""
        return self.embedding_dim // self.num_heads

    @model_validator(mode="after")
    def _check_sizes(self) -> GPT2Config:
        _check_heads(self.num_heads, self.embedding_dim)
        return self


class RopeScaling(ConfigRecord):
    """Llama 3.1's scaling of rotary positions: low frequencies are slowed, high ones kept.

    The limits below are wavelengths, in tokens.

    Attributes:
        scaling_factor: factor by which low frequencies are slowed.
        high_freq_factor: wavelengths below original_context_length / high_freq_factor are kept.
        low_freq_factor: wavelengths above original_context_length / low_freq_factor are slowed; between the two limits
            the frequency is interpolated.
        original_context_length: tokens of a sequence in the model's first training.
    """

    scaling_factor: Annotated[float, Field(ge=1, le=LARGEST_FLOAT)]
    high_freq_factor: PositiveFloat = 4.0
    low_freq_factor: PositiveFloat = 1.0
    original_context_length: SequenceLength

    @model_validator(mode="after")
    def _check_factors(self) -> RopeScaling:
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"transformer_config.rope_scaling.low_freq_factor: {self.low_freq_factor} given, expected less than "
                f"high_freq_factor ({self.high_freq_factor}); write the values of Llama 3.1, 1.0 and 4.0"
            )
        return self


class LlamaConfig(ConfigRecord):
    """A Llama, with the keys of tt-train's `transformer_config`.

    Attributes:
        model_type: discriminator of the model configs.
        num_heads: attention heads (queries) of a block; divides `embedding_dim`.
        num_groups: key and value heads, each shared by num_heads / num_groups queries; divides `num_heads`.
        embedding_dim: width of the residual stream.
        intermediate_dim: width inside a feed-forward layer; None: by tt-train's rule, see `feed_forward_width`.
        num_blocks: number of transformer blocks.
        max_sequence_length: tokens of a training sequence.
        vocab_size: rows of the token embedding; None: as many as the tokenizer has tokens.
        dropout_prob: dropout probability of embeddings and residuals.
        theta: base of the rotary positions' wavelengths.
        rope_scaling: scaling of the rotary positions; None for none.
        weight_tying: whether the output projection is the token embedding.
        runner_type: what the forward pass keeps for the backward pass.
    """

    model_type: Literal["llama"] = "llama"
    num_heads: HeadCount = 6
    num_groups: HeadCount = 3
    embedding_dim: Width = 384
    intermediate_dim: Width | None = None
    num_blocks: BlockCount = 6
    max_sequence_length: SequenceLength = 128
    vocab_size: Width | None = None
    dropout_prob: Probability = 0.2
    theta: PositiveFloat = 10000.0
    rope_scaling: RopeScaling | None = None
    weight_tying: bool = False
    runner_type: RunnerType = "default"

    @property
    def head_width(self) -> int:
        """Width of an attention head."""
        return self.embedding_dim // self.num_heads

    @property
    def feed_forward_width(self) -> int:
        """`intermediate_dim`, else tt-train's rule: 4 × embedding_dim × 2/3, rounded up to a multiple of 256."""
        if self.intermediate_dim is not None:
            return self.intermediate_dim
        return -(-(4 * self.embedding_dim * 2 // 3) // _INTERMEDIATE_MULTIPLE) * _INTERMEDIATE_MULTIPLE

    @model_validator(mode="after")
    def _check_sizes(self) -> LlamaConfig:
        _check_heads(self.num_heads, self.embedding_dim)
        if self.num_heads % self.num_groups:
            raise ValueError(
                f"transformer_config.num_groups: {self.num_groups} given, expected a divisor of num_heads "
                f"({self.num_heads}); write for example num_groups: {math.gcd(self.num_heads, self.num_groups)}"
            )
        if self.head_width % 32:
            raise ValueError(
                f"transformer_config.embedding_dim: {self.embedding_dim} given with num_heads {self.num_heads}, "
                f"expected a head width that is a multiple of 32, as rotary positions need (it is "
                f"{self.head_width}); write for example embedding_dim: "
                f"{self.num_heads * -(-self.head_width // 32) * 32}"
            )
        return self


class LinearRegressionConfig(ConfigRecord):
    """One linear layer with mean squared error on data made from the job's seed (tt-train's first example).

    Attributes:
        model_type: discriminator of the model configs.
        num_features: inputs of a sample.
        num_targets: outputs of a sample.
        bias: whether the layer, and the function that makes the data, have one.
        training_samples: number of samples, of which the last tenth is held out.
        noise: standard deviation of the noise added to the targets.
    """

    model_type: Literal["linear_regression"] = "linear_regression"
    num_features: Width = 64
    num_targets: Width = 32
    bias: bool = True
    training_samples: SampleCount = 100_000
    noise: NonNegativeFloat = 0.0


class MLPConfig(ConfigRecord):
    """Linear layers with activations between them and mean squared error, on data like that of linear regression.

    Attributes:
        model_type: discriminator of the model configs.
        input_features: inputs of a sample.
        hidden_features: widths of the hidden layers, in order; empty for a linear model.
        output_features: outputs of a sample.
        activation: activation after each layer but the last.
        bias: whether the layers, and the function that makes the data, have one.
        training_samples: number of samples, of which the last tenth is held out.
        noise: standard deviation of the noise added to the targets.
    """

    model_type: Literal["mlp"] = "mlp"
    input_features: Width = 784
    hidden_features: Annotated[tuple[Width, ...], Field(max_length=1000)] = (128, 128)
    output_features: Width = 10
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "relu"
    bias: bool = True
    training_samples: SampleCount = 100_000
    noise: NonNegativeFloat = 0.0

    @property
    def num_features(self) -> int:
        """Inputs of a sample, under linear regression's name."""
        return self.input_features

    @property
    def num_targets(self) -> int:
        """Outputs of a sample, under linear regression's name."""
        return self.output_features


class OwnConfig(ConfigRecord):
    """A model of the user, whose parameters only workers can count.

    Attributes:
        max_sequence_length: tokens of a training sequence.
        max_parameters: maximum number of parameters.
    """

    max_sequence_length: SequenceLength = 128
    max_parameters: ElementCount = MOST_OWN_PARAMETERS


class CustomConfig(OwnConfig):
    """A language model built by a Python module of the user.

    Attributes:
        model_type: `package.module:Factory`, imported by workers that allow it.
        runner_type: passed to the factory.
        options: all other keys of `transformer_config`, passed to the factory unchanged.
    """

    model_type: Annotated[str, Field(max_length=500, pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")]
    runner_type: RunnerType = "default"
    options: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_options(self) -> CustomConfig:
        for key, value in self.options.items():
            if not is_plain(value):
                raise ValueError(
                    f"transformer_config.{key:.60}: {format_value(value)} given, expected numbers of 64 bits and at "
                    f"most {DEEPEST_OPTION} levels of lists and mappings; change it"
                )
        return self


class ExternalConfig(OwnConfig):
    """A model whose gradients processes of users compute, which join workers (docs/use/own-loop.md).

    Attributes:
        model_type: discriminator of the model configs.
        max_sequence_length: tokens of each of a micro-batch's `batch_size` samples, by which speeds are told.
    """

    model_type: Literal["external"] = "external"
    max_sequence_length: SequenceLength = 1


def _check_heads(heads: int, width: int) -> None:
    if width % heads:
        raise ValueError(
            f"transformer_config.embedding_dim: {width} given, expected a multiple of num_heads ({heads}); "
            f"write for example embedding_dim: {heads * -(-width // heads)}"
        )


def _model_tag(value: Any) -> str | None:
    """Return the `model_type`, or `custom` if it has a colon; None if there is none."""
    named = value.get("model_type") if isinstance(value, Mapping) else getattr(value, "model_type", None)
    if isinstance(value, BaseModel) and isinstance(named, str):
        return "custom" if isinstance(value, CustomConfig) else named
    return "custom" if isinstance(named, str) and ":" in named else named if isinstance(named, str) else None


TransformerConfig = GPT2Config | LlamaConfig | CustomConfig
"""Config of a language model."""
RegressionConfig = LinearRegressionConfig | MLPConfig
"""Config of a model that makes its data from the seed."""
AnyModelConfig = TransformerConfig | RegressionConfig | ExternalConfig
"""Config of any model."""
ModelConfig = Annotated[
    Annotated[GPT2Config, Tag("gpt2")]
    | Annotated[LlamaConfig, Tag("llama")]
    | Annotated[LinearRegressionConfig, Tag("linear_regression")]
    | Annotated[MLPConfig, Tag("mlp")]
    | Annotated[CustomConfig, Tag("custom")]
    | Annotated[ExternalConfig, Tag("external")],
    Discriminator(_model_tag),
]
"""Config of a model that workers can train; `model_type` names its kind."""


def find_own_module(model: ModelConfig) -> str | None:
    """Return the module of a user's own model; None for a model of Tiermesh."""
    return model.model_type.partition(":")[0] if isinstance(model, CustomConfig) else None


def check_allowed(model_type: str, allowed: Collection[str]) -> None:
    """Check that the code of an own model may be imported.

    Args:
        model_type: `package.module:Factory`.
        allowed: code that may be imported, `package.module` or `package.module:Factory` each.

    Raises:
        Refused: it may not.
    """
    module_name = model_type.partition(":")[0]
    if model_type not in allowed and module_name not in allowed:
        raise Refused(
            f"transformer_config.model_type: {model_type}: not allowed on this worker, which may import "
            f"{', '.join(allowed) or 'no models'}; start it with --allow-models {module_name}, or name an allowed model"
        )
