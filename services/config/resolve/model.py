"""The model that a job's sections describe, with tt-train's defaults filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from services.config.job_parts import PretrainedConfig
from services.config.models import (
    AnyModelConfig,
    CustomConfig,
    ExternalConfig,
    GPT2Config,
    LinearRegressionConfig,
    LlamaConfig,
    MLPConfig,
    RopeScaling,
)
from services.config.options import is_plain
from services.config.refusals import dotted_name, format_value, validation_refused
from services.config.sections import (
    MODEL_SECTIONS,
    CustomSection,
    ExternalSection,
    LinearRegressionSection,
    MLPSection,
    RopeScalingSection,
    TrainingSection,
    TransformerSection,
    parse_section,
)
from services.config.spelling import nearest_name
from services.errors import Refused
from services.printable import printable_path

_SECTION_OF = {
    "gpt2": "transformer_config",
    "llama": "transformer_config",
    "linear_regression": "linear_regression_config",
    "mlp": "mlp_config",
    "external": "transformer_config",
}
"""Section of each model's settings. Those of a custom model are in `transformer_config`."""

_LLAMA_ONLY = ("intermediate_dim", "theta", "num_groups", "rope_scaling")
_GPT2_ONLY = ("positional_embedding_type", "bias", "activation")


@dataclass(frozen=True)
class ResolvedModel:
    """A job's model.

    Attributes:
        model: config of the model; its `vocab_size` is the one that the job or the checkpoint gives.
        pretrained: checkpoint that the weights start from; None: they follow from the job's seed.
        notices: a line for each model setting without effect.
    """

    model: AnyModelConfig
    pretrained: PretrainedConfig | None = None
    notices: list[str] = field(default_factory=list)


def resolve_model(sections: Mapping[str, Any], training: TrainingSection, folder: Path) -> ResolvedModel:
    """Return the model that the sections describe.

    Args:
        sections: sections by name, as read.
        training: the `training_config` section, which may name the model.
        folder: folder of the config, for a relative `model_path`.

    Raises:
        Refused: something is wrong; the first error is named.
    """
    given = [key for key in MODEL_SECTIONS if sections.get(key) is not None]
    if len(given) > 1:
        raise Refused(f"{given[1]}: given together with {given[0]}, expected one model; remove one of them")
    name = _model_type_of(sections, training, given)
    if name == "linear_regression":
        regression = parse_section(
            sections.get("linear_regression_config"), "linear_regression_config", LinearRegressionSection
        )
        return ResolvedModel(LinearRegressionConfig(**regression.model_dump()))
    if name == "mlp":
        mlp = parse_section(sections.get("mlp_config"), "mlp_config", MLPSection)
        _check_data_is_made(mlp)
        return ResolvedModel(MLPConfig(**{**mlp.model_dump(), "hidden_features": tuple(mlp.hidden_features)}))
    if name == "external":
        external = parse_section(sections.get("transformer_config"), "transformer_config", ExternalSection)
        return ResolvedModel(ExternalConfig(**external.model_dump(exclude={"model_type"})))
    if name is not None and ":" in name:
        return ResolvedModel(_custom(sections.get("transformer_config"), name))
    section = parse_section(sections.get("transformer_config"), "transformer_config", TransformerSection)
    if section.model_path:
        return _pretrained(section, name, section.model_path, folder)
    notices = _ineffective_keys(name or "gpt2", section)
    if not given and name != "llama":
        notices.append(
            "training_config.model_config: not given; tt-train's default GPT-2 is trained "
            "(6 blocks, 6 heads, 384 dimensions, 128 tokens)"
        )
    return ResolvedModel(_llama(section) if name == "llama" else _gpt2(section), notices=notices)


def _check_data_is_made(mlp: MLPSection) -> None:
    """Check that a perceptron for MNIST's images is not trained on made data by mistake."""
    sizes_of_mnist = (mlp.input_features, mlp.output_features) == (784, 10)
    given = mlp.model_fields_set
    if (
        sizes_of_mnist
        and {"input_features", "output_features"} <= given
        and not {"training_samples", "noise"} & given
    ):
        raise Refused(
            "mlp_config: MNIST's 784 inputs and 10 outputs given without training_samples, expected it, as Tiermesh "
            "makes the data and reads no images; write for example training_samples: 20000, or run MNIST with tt-train"
        )


def _pretrained(
    section: TransformerSection, name: str | None, model_path: str, folder: Path
) -> ResolvedModel:
    """Return the checkpoint's model. The job may repeat its sizes, but not change them."""
    # Imported late for numpy and safetensors: only jobs that need them load them, in a daemon after BLAS is set up.
    from services.config.pretrained import (
        check_tensors,
        find_checkpoint_folder,
        hash_checkpoint,
        open_pretrained,
        prefix_field_name,
    )

    path = find_checkpoint_folder(model_path, folder)
    with prefix_field_name():
        stored, opened = open_pretrained(path)
    place = printable_path(opened.path)
    if name is not None and name != stored.model_type:
        raise Refused(
            f'transformer_config.model_type: {format_value(name)} given, expected "{stored.model_type}" as in '
            f"the checkpoint {place}; remove model_type or give another model_path"
        )
    changes: dict[str, Any] = {"runner_type": section.runner_type}
    for key in type(stored).model_fields.keys() & section.model_fields_set - {"model_type", "runner_type"}:
        if getattr(section, key) is None:
            continue
        value, has = _setting_value(section, key), getattr(stored, key)
        if key == "intermediate_dim" and isinstance(stored, LlamaConfig):
            has = stored.feed_forward_width
        if key == "dropout_prob" or (key == "max_sequence_length" and value <= has):
            changes[key] = value
        elif value != has:
            raise Refused(
                f"transformer_config.{key}: {format_value(value)} given, expected {format_value(has)} as in the "
                f"checkpoint {place}; remove it or give another model_path"
            )
    with prefix_field_name():
        check_tensors(stored, opened)
        pretrained = hash_checkpoint(opened)
    model = type(stored).model_validate(stored.model_dump() | changes)
    return ResolvedModel(model, pretrained, _ineffective_keys(stored.model_type, section))


def _setting_value(section: TransformerSection, key: str) -> Any:
    """Return a given setting as the model's config has it."""
    if key == "weight_tying":
        return section.weight_tying in ("enabled", True)
    return _rope_scaling(section.rope_scaling) if key == "rope_scaling" else getattr(section, key)


def _model_type_of(sections: Mapping[str, Any], training: TrainingSection, given: list[str]) -> str | None:
    """Return the model's `model_type`, or None if it is not known.

    It comes from `training_config`, from `transformer_config`, or from the only model section that is given.
    """
    transformer = sections.get("transformer_config")
    inner = transformer.get("model_type") if isinstance(transformer, Mapping) else None
    if inner is not None and not isinstance(inner, str):
        raise Refused(
            f"transformer_config.model_type: {format_value(inner)} given, expected a text; "
            "write for example model_type: gpt2"
        )
    outer = training.model_type
    for where, name in (("training_config", outer), ("transformer_config", inner)):
        if name and ":" not in name and name not in _SECTION_OF:
            near = nearest_name(name, _SECTION_OF)
            raise Refused(
                f"{where}.model_type: {format_value(name)} given, expected one of: {', '.join(_SECTION_OF)}, "
                f"or your own model as package.module:Factory; {f'did you mean {near}?' if near else 'correct it'}"
            )
    if outer and inner and outer != inner:
        raise Refused(
            f"training_config.model_type: {format_value(outer)} given with transformer_config.model_type "
            f"{format_value(inner)}, expected the same; remove one of them"
        )
    name = outer or inner
    if name is None:
        return next((name for name in ("linear_regression", "mlp") if _SECTION_OF[name] in given), None)
    expected = _SECTION_OF.get(name, "transformer_config")
    if given and given[0] != expected:
        where = "training_config" if outer else "transformer_config"
        raise Refused(
            f"{where}.model_type: {format_value(name)} given with a {given[0]}, expected a {expected}; "
            "change one of the two"
        )
    return name


def _gpt2(section: TransformerSection) -> GPT2Config:
    return GPT2Config(
        num_heads=section.num_heads,
        embedding_dim=section.embedding_dim,
        num_blocks=section.num_blocks,
        max_sequence_length=section.max_sequence_length,
        vocab_size=section.vocab_size,
        dropout_prob=section.dropout_prob,
        weight_tying=section.weight_tying in ("enabled", True),
        positional_embedding_type=section.positional_embedding_type,
        bias=section.bias,
        activation=section.activation,
        runner_type=section.runner_type,
    )


def _llama(section: TransformerSection) -> LlamaConfig:
    given: dict[str, Any] = {"num_groups": section.num_groups, "theta": section.theta}
    return LlamaConfig(
        num_heads=section.num_heads,
        embedding_dim=section.embedding_dim,
        intermediate_dim=section.intermediate_dim,
        num_blocks=section.num_blocks,
        max_sequence_length=section.max_sequence_length,
        vocab_size=section.vocab_size,
        dropout_prob=section.dropout_prob,
        rope_scaling=_rope_scaling(section.rope_scaling),
        weight_tying=section.weight_tying in ("enabled", True),
        runner_type=section.runner_type,
        **{key: value for key, value in given.items() if value is not None},
    )


def _rope_scaling(value: dict[Any, Any] | None) -> RopeScaling | None:
    where = "transformer_config.rope_scaling"
    section = parse_section(value, where, RopeScalingSection)
    factor, context = section.scaling_factor, section.original_context_length
    if not factor and not context:
        return None
    if not factor or not context:
        missing = "original_context_length" if factor else "scaling_factor"
        raise Refused(
            f"{where}.{missing}: missing, expected together with the other settings; write the values of Llama 3.1, "
            "scaling_factor: 8.0 and original_context_length: 8192"
        )
    return RopeScaling(
        scaling_factor=factor,
        original_context_length=context,
        **{
            key: value
            for key in ("high_freq_factor", "low_freq_factor")
            if (value := getattr(section, key)) is not None
        },
    )


def _custom(value: Any, name: str) -> CustomConfig:
    where = "transformer_config"
    if isinstance(value, Mapping):
        for key, option in value.items():
            if not isinstance(key, str) or not is_plain(option):
                raise Refused(
                    f"{dotted_name(where, key)}: {format_value(option)} given, expected a text as key and a plain "
                    "value (text, finite number, true or false, null, a list or a mapping of them); change it"
                )
    section = parse_section(
        {"model_type": name, **value} if isinstance(value, Mapping) else value, where, CustomSection
    )
    if section.model_path:
        raise Refused(
            f"{where}.model_path: {format_value(section.model_path)} given with model_type {format_value(name)}, "
            "expected none, as only gpt2 and llama start from a checkpoint; remove it"
        )
    try:
        return CustomConfig(
            model_type=name,
            max_sequence_length=section.max_sequence_length,
            max_parameters=section.max_parameters,
            runner_type=section.runner_type,
            options=dict(section.model_extra or {}),
        )
    except ValidationError as error:
        raise validation_refused(error, where, CustomConfig) from None


def _ineffective_keys(name: str, section: TransformerSection) -> list[str]:
    keys, owner = (_LLAMA_ONLY, "a GPT-2") if name == "gpt2" else (_GPT2_ONLY, "a Llama")
    return [
        f"transformer_config.{key}: {format_value(getattr(section, key))} is without effect: "
        f"{owner} has no such setting"
        for key in keys
        if key in section.model_fields_set and getattr(section, key) not in (None, False, {})
    ]
