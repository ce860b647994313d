"""The sections of tt-train's YAML files as users write them: each key with its type and tt-train's default.

A key with default None was not given; `resolve/` decides what that means. Keys that have no effect here or are not
supported yet have types, too; `resolve/unsupported.py` reports their use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from services.config.field_types import (
    MOST_MICRO_BATCHES,
    BatchSize,
    BlockCount,
    ElementCount,
    Fraction,
    HeadCount,
    MicroBatchCount,
    NonNegativeFloat,
    NonNegativeInt,
    PathText,
    PositiveFloat,
    PositiveInt,
    PrintableName,
    Priority,
    Probability,
    SampleCount,
    SequenceLength,
    StageCount,
    TargetName,
    ThreadCount,
    Width,
)
from services.config.job_parts import (
    MOST_CORPUS_FILES,
    CheckpointConfig,
    ScheduleType,
    StartConfig,
    TrackingConfig,
    TrackingConfigField,
    WireConfig,
    WireConfigField,
)
from services.config.models import MOST_OWN_PARAMETERS, RunnerType
from services.config.refusals import format_value, validation_refused, yaml_keys
from services.errors import Refused
from services.pipeline.schedule import ScheduleKind
from services.protocol.plan import MOST_EVALUATION_BATCHES


class Section(BaseModel):
    """Base of the sections: finite numbers only, no unknown keys, no implicit conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class CorpusFileSection(Section):
    """One file of `training_config.data_path`."""

    path: Annotated[PathText, Field(min_length=1)]
    weight: PositiveFloat | None = None


def _list_files(value: Any) -> Any:
    """Return the list of mappings that a path, or a list of paths and mappings, stands for."""
    if isinstance(value, str | dict):
        value = [value]
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(
            f"training_config.data_path: {format_value(value)} given, expected a path, or a list of paths or of "
            "{path, weight}; write for example data_path: corpus.txt"
        )
    return [{"path": file} if isinstance(file, str) else file for file in value]


CorpusPaths = Annotated[
    list[CorpusFileSection], BeforeValidator(_list_files), Field(max_length=MOST_CORPUS_FILES)
]
"""Files of a corpus as users write them: a path, or a list of paths or of `{path, weight}`."""

MixedPrecision = Literal["bf16", "bfloat16", "fp32", "float32", True, False]
"""Type of weights and activations on the mesh, as JAX trainers write it; `true` means bfloat16."""


class TrainingSection(Section):
    """`training_config`, with the old (flat) and the new (`optimizer:`) spelling of the optimizer's settings."""

    project_name: PrintableName = "tt_train_nano_gpt"
    model_type: PathText | None = None
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 5489
    lazy_parameter_init: bool = False
    model_save_interval: NonNegativeInt = 500
    checkpoint: CheckpointConfig = CheckpointConfig()
    batch_size: BatchSize = 4
    validation_batch_size: BatchSize | None = None
    validation_batches: Annotated[int, Field(ge=0, le=MOST_EVALUATION_BATCHES)] = 0
    num_epochs: PositiveInt | None = None
    epochs: Literal["auto", "strict"] = "auto"
    max_steps: PositiveInt = 1000
    steps: PositiveInt | None = None
    total_steps: PositiveInt | None = None
    eval_every: NonNegativeInt = 200
    gradient_accumulation_steps: MicroBatchCount = 1
    micro_batch_size: BatchSize | None = None
    sync_gradients_every: PositiveInt = 1
    mixed_precision: MixedPrecision | None = None
    profile_communication: bool = False
    model_config_path: PathText | None = Field(None, alias="model_config")
    data_path: CorpusPaths = Field([CorpusFileSection(path="data/shakespeare.txt")])
    vocabulary: Literal["tokenizer", "config"] = "tokenizer"
    tokenizer_type: Literal["char", "bpe"] = "char"
    tokenizer_path: PathText | None = None
    start_from: StartConfig | None = None
    scheduler_type: ScheduleType | None = None
    use_clip_grad_norm: bool = False
    clip_grad_norm_max_norm: PositiveFloat = 1.0
    checkpoint_dir: PathText | None = None
    optimizer: dict[Any, Any] | None = None
    learning_rate: NonNegativeFloat | None = None
    beta1: Probability | None = None
    beta2: Probability | None = None
    eps: PositiveFloat | None = None
    momentum: Probability | None = None
    dampening: Fraction | None = None
    nesterov: bool | None = None
    weight_decay: NonNegativeFloat | None = None
    weight_decay_on: Literal["all", "matrices"] | None = None
    use_moreh_adamw: bool = False
    use_kahan_summation: bool = False
    use_no_op: bool = False
    wire_dtype: WireConfigField = WireConfig()
    accumulation: Literal["host"] = "host"
    exact: bool = True
    min_workers: MicroBatchCount | None = None
    max_workers: MicroBatchCount | None = None
    preemptible: bool = True
    priority: Priority = 0
    on_non_finite: Literal["skip", "stop"] = "skip"
    verify_fraction: Fraction = 0.0
    on_faulty: Literal["go_back", "go_on"] = "go_back"
    tracking: TrackingConfigField = TrackingConfig()
    notify: TargetName | None = None


class AdamWSection(Section):
    """`training_config.optimizer` of the AdamW family. Weights and optimizer state are float32 for all of them."""

    type: Literal["AdamW", "AdamWFullPrecision", "MorehAdamW", "AdamWComposite"] = "AdamW"
    lr: NonNegativeFloat = 1e-3
    beta1: Probability = 0.9
    beta2: Probability = 0.999
    epsilon: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.01
    weight_decay_on: Literal["all", "matrices"] = "all"
    amsgrad: bool = False
    stochastic_rounding: bool = False
    kahan_summation: bool = False


class SGDSection(Section):
    """`training_config.optimizer` of type SGD or SGDComposite."""

    type: Literal["SGD", "SGDComposite"] = "SGD"
    lr: NonNegativeFloat = 1e-3
    momentum: Probability = 0.0
    dampening: Fraction = 0.0
    weight_decay: NonNegativeFloat = 0.0
    weight_decay_on: Literal["all", "matrices"] = "all"
    nesterov: bool = False


class NoOpSection(Section):
    """`training_config.optimizer` of type NoOp."""

    type: Literal["NoOp"] = "NoOp"


class DeviceSection(Section):
    """`device_config`. A mesh is `[rows, columns]`, or with named axes `[[rows, columns], ["fsdp", "tp"]]`."""

    mesh_shape: list[Any] = Field(default_factory=lambda: [1, 1], max_length=8)
    device_ids: list[NonNegativeInt] = Field(default_factory=list, max_length=1024)
    enable_ddp: bool = False
    enable_tp: bool = False
    enable_pp: bool = False
    enable_cp: bool = False
    enable_sp: bool = False
    enable_ep: bool = False
    enable_fsdp: bool = False
    lazy_parameter_init: bool = False
    backend: Literal["auto", "ttnn", "emulator"] = "auto"
    dtype: Literal["bfloat16", "float32"] | None = None
    threads: ThreadCount = 1
    trace: bool = False


def _check_blocks(value: Any) -> Any:
    if value is None or isinstance(value, dict) or value == "auto":
        return value
    raise ValueError(
        f"multihost_config.pipeline_parallel_config.blocks_per_rank: {format_value(value)} given, expected the "
        "blocks of each rank, such as {0: 16, 1: 16}, or auto; correct it"
    )


class PipelineSection(Section):
    """`multihost_config.pipeline_parallel_config`, with Tiermesh's own keys.

    These are `num_stages`, `ranges_per_rank`, `schedule` and `hide_transfers`. tt-train casts the keys and values of
    `blocks_per_rank`, so texts are accepted there.
    """

    num_blocks: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    blocks_per_rank: Annotated[dict[Any, Any] | Literal["auto"] | None, BeforeValidator(_check_blocks)] = None
    num_stages: StageCount | None = None
    ranges_per_rank: BlockCount = 1
    schedule: ScheduleKind = "1f1b"
    hide_transfers: bool = True


class MultihostSection(Section):
    """`multihost_config`. Tiermesh always speaks gRPC; `socket_type` has no effect."""

    enabled: bool = False
    num_workers: Annotated[int, Field(ge=0, le=MOST_MICRO_BATCHES)] | None = None
    socket_type: Literal["mpi", "fabric", "grpc"] = "grpc"
    pipeline_parallel_config: PipelineSection | None = None


class ExperimentalSection(Section):
    """`transformer_config.experimental`."""

    use_composite_layernorm: bool = False


class TransformerSection(Section):
    """`transformer_config` of a GPT-2 or a Llama. Keys of the other model have no effect."""

    model_type: PathText | None = None
    model_path: PathText | None = None
    runner_type: RunnerType = "default"
    num_heads: HeadCount = 6
    embedding_dim: Width = 384
    dropout_prob: Probability = 0.2
    num_blocks: BlockCount = 6
    vocab_size: Width | None = None
    max_sequence_length: SequenceLength = 128
    weight_tying: Literal["enabled", "disabled", True, False] | None = None
    positional_embedding_type: Literal["trainable", "fixed"] = "trainable"
    bias: bool = True
    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    experimental: ExperimentalSection = ExperimentalSection()
    embedding_placement: Literal["replicated", "vocab_parallel", "feature_parallel"] = "replicated"
    intermediate_dim: Width | None = None
    theta: PositiveFloat | None = None
    num_groups: HeadCount | None = None
    rope_scaling: dict[Any, Any] | None = None


class RopeScalingSection(Section):
    """`transformer_config.rope_scaling`. Positions aren't scaled if both the factor and the context are null or 0."""

    scaling_factor: NonNegativeFloat | None = None
    high_freq_factor: PositiveFloat | None = None
    low_freq_factor: PositiveFloat | None = None
    original_context_length: NonNegativeInt | None = None


class CustomSection(Section):
    """`transformer_config` of a custom model. All other keys are options of its factory."""

    model_config = ConfigDict(extra="allow")

    model_type: PathText
    model_path: PathText | None = None
    runner_type: RunnerType = "default"
    max_sequence_length: SequenceLength = 128
    max_parameters: ElementCount = MOST_OWN_PARAMETERS


class ExternalSection(Section):
    """`transformer_config` of a job whose gradients processes of users compute."""

    model_type: Literal["external"] = "external"
    max_sequence_length: SequenceLength = 1
    max_parameters: ElementCount = MOST_OWN_PARAMETERS


class LinearRegressionSection(Section):
    """`linear_regression_config`, a section of Tiermesh's own: tt-train's example has these as arguments."""

    num_features: Width = 64
    num_targets: Width = 32
    bias: bool = True
    training_samples: SampleCount = 100_000
    noise: NonNegativeFloat = 0.0


class MLPSection(Section):
    """`mlp_config`: tt-train's keys, and those of the data as in linear regression."""

    input_features: Width = 784
    hidden_features: list[Width] = Field(default_factory=lambda: [128, 128], max_length=1000)
    output_features: Width = 10
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "relu"
    bias: bool = True
    training_samples: SampleCount = 100_000
    noise: NonNegativeFloat = 0.0


class SchedulerSection(Section):
    """`scheduler_config`: settings of `training_config.scheduler_type`; each type reads its own."""

    warmup_steps: NonNegativeInt | None = None
    min_lr: NonNegativeFloat | None = None
    max_lr: NonNegativeFloat | None = None
    hold_steps: NonNegativeInt | None = None
    beta1_start: Probability | None = None
    beta1_end: Probability | None = None
    beta1_warmup_steps: NonNegativeInt | None = None
    step_size: PositiveInt | None = None
    gamma: Fraction | None = None


class EvalSection(Section):
    """`eval_config`: sampling of text. In tt-train a `top_k` of -1 means all tokens."""

    repetition_penalty: PositiveFloat = 1.0
    temperature: NonNegativeFloat = 1.0
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] = -1
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0


SECTIONS: dict[str, type[Section]] = {
    "training_config": TrainingSection,
    "device_config": DeviceSection,
    "multihost_config": MultihostSection,
    "transformer_config": TransformerSection,
    "linear_regression_config": LinearRegressionSection,
    "mlp_config": MLPSection,
    "scheduler_config": SchedulerSection,
    "eval_config": EvalSection,
}
"""Sections that a config may have at its top level."""

MODEL_SECTIONS = ("transformer_config", "linear_regression_config", "mlp_config")
"""Sections that describe a model; a job has one of them."""

NESTED_SECTIONS = tuple(section for section in SECTIONS if section != "training_config")
"""Sections that may stand inside `training_config`, as older files have the model and the hosts."""

OPTIMIZERS: dict[str, type[Section]] = {
    "AdamW": AdamWSection,
    "AdamWFullPrecision": AdamWSection,
    "MorehAdamW": AdamWSection,
    "AdamWComposite": AdamWSection,
    "SGD": SGDSection,
    "SGDComposite": SGDSection,
    "NoOp": NoOpSection,
}
"""Sections with the keys of `training_config.optimizer`, by its type."""

FLAT_OPTIMIZER_KEYS = {
    "learning_rate": "lr",
    "beta1": "beta1",
    "beta2": "beta2",
    "eps": "epsilon",
    "momentum": "momentum",
    "dampening": "dampening",
    "nesterov": "nesterov",
    "weight_decay": "weight_decay",
    "weight_decay_on": "weight_decay_on",
}
"""Keys of `training_config.optimizer` by their old spelling in `training_config` itself."""


def section_keys(section: str) -> list[str]:
    """Return the keys of a section as users write them."""
    return yaml_keys(SECTIONS[section])


def optimizer_keys() -> set[str]:
    """Return the keys of `training_config.optimizer`, of all types."""
    return {key for schema in OPTIMIZERS.values() for key in yaml_keys(schema)}


def key_parents(key: str) -> list[tuple[str, ...]]:
    """Return the paths of the mappings that have a key: of sections, and of `training_config.optimizer`."""
    parents: list[tuple[str, ...]] = [(section,) for section in SECTIONS if key in section_keys(section)]
    if key in optimizer_keys():
        parents.append(("training_config", "optimizer"))
    return parents


_SomeSection = TypeVar("_SomeSection", bound=Section)


def parse_section(value: Any, where: str, schema: type[_SomeSection]) -> _SomeSection:
    """Return a section, parsed from the value under its key. None stands for a section of defaults.

    Args:
        value: the value as read from YAML.
        where: dotted name of the section.
        schema: class of the section.

    Raises:
        Refused: a key is unknown, of the wrong type or out of range; the first one is named.
    """
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        raise Refused(
            f"{where}: {format_value(value)} given, expected a mapping of keys to values; indent its keys under it"
        )
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise validation_refused(error, where, schema) from None
