"""Settings of tt-train that are not supported yet (refused), or have no effect here (reported once)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from services.config.device import DeviceConfig
from services.config.refusals import format_value
from services.errors import Refused


@dataclass(frozen=True)
class _Rule:
    """A setting and the values for which it is unsupported or without effect.

    Attributes:
        field: dotted name of the setting.
        applies: returns whether the rule applies to a value.
        text: advice or reason for the user.
    """

    field: str
    applies: Callable[[Any], bool]
    text: str

    def value(self, sections: Mapping[str, Any]) -> Any:
        """Return the setting's value, or None if the config has none."""
        inner: Any = sections
        for part in self.field.split("."):
            inner = inner.get(part) if isinstance(inner, Mapping) else None
        return inner


def _is_true(value: Any) -> bool:
    return value is True


def _is_given(value: Any) -> bool:
    return value is not None and value != "" and value != [] and value != {}


def _is_one_of(*values: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in values


def _is_above_one(value: Any) -> bool:
    return isinstance(value, int) and value > 1


_LATER_MODELS = _is_one_of("deepseek", "qwen3", "bert", "dit")
_INTEGERS = _is_one_of("int8", "int4")
_SUPPORTED_STRATEGIES = "use enable_ddp, enable_fsdp or enable_tp"
_NOT_BUILT = (
    _Rule("training_config.model_type", _LATER_MODELS, "use gpt2 or llama"),
    _Rule("transformer_config.model_type", _LATER_MODELS, "use gpt2 or llama"),
    _Rule("device_config.enable_cp", _is_true, f"context parallelism comes later; {_SUPPORTED_STRATEGIES}"),
    _Rule("device_config.enable_sp", _is_true, f"sequence parallelism comes later; {_SUPPORTED_STRATEGIES}"),
    _Rule("device_config.enable_ep", _is_true, f"expert parallelism comes later; {_SUPPORTED_STRATEGIES}"),
    _Rule(
        "training_config.sync_gradients_every", _is_above_one, "every step's gradients are summed; remove it"
    ),
    _Rule("training_config.wire_dtype", _INTEGERS, "use bfloat16"),
    _Rule("training_config.wire_dtype.gradients", _INTEGERS, "use bfloat16"),
    _Rule("training_config.wire_dtype.weights", _INTEGERS, "use bfloat16"),
    _Rule("training_config.wire_dtype.activations", _INTEGERS, "use bfloat16"),
    _Rule("training_config.accumulation", _is_one_of("mesh"), "use host"),
    _Rule(
        "training_config.optimizer.type",
        _is_one_of("Muon", "MuonComposite", "MuonWithAdamW"),
        "use AdamW or SGD",
    ),
)

_OWN_DATA = "the processes that join have their own data"
_OWN_DEVICE = "the processes that join have their own devices"
_NOT_EXTERNAL = {
    "training_config.data_path": _OWN_DATA,
    "training_config.tokenizer_type": _OWN_DATA,
    "training_config.tokenizer_path": _OWN_DATA,
    "training_config.vocabulary": _OWN_DATA,
    "training_config.num_epochs": f"{_OWN_DATA}, of which only they know the length",
    "training_config.epochs": f"{_OWN_DATA}, of which only they know the length",
    "training_config.mixed_precision": _OWN_DEVICE,
    "device_config": _OWN_DEVICE,
    "multihost_config.pipeline_parallel_config": "each process that joins has the whole model",
    "eval_config": "text is generated from gpt2 and llama only",
}
"""Settings that have no meaning for an external job, with the reason."""

_FLOAT32_STATE = "the optimizer role always has float32 weights and state"
_ONE_WORKER_INITIALIZES = "one worker makes the initial weights, and each chip gets its part of them"
_EMBEDDING_PLACEMENT = "transformer_config.embedding_placement"
_NOT_PARALLEL = _Rule(
    _EMBEDDING_PLACEMENT,
    _is_one_of("vocab_parallel", "feature_parallel"),
    "it applies to tensor parallelism only",
)
_ALWAYS_BY_VOCABULARY = _Rule(
    _EMBEDDING_PLACEMENT,
    _is_one_of("replicated", "feature_parallel"),
    "tensor parallelism always splits tables by vocabulary",
)
_WITHOUT_EFFECT = (
    _Rule(
        "training_config.checkpoint_dir", _is_given, "checkpoints are written to the optimizer's --state-dir"
    ),
    _Rule("training_config.use_moreh_adamw", _is_true, _FLOAT32_STATE),
    _Rule("training_config.use_kahan_summation", _is_true, _FLOAT32_STATE),
    _Rule("training_config.optimizer.stochastic_rounding", _is_true, _FLOAT32_STATE),
    _Rule("training_config.optimizer.kahan_summation", _is_true, _FLOAT32_STATE),
    _Rule(
        "training_config.profile_communication",
        _is_true,
        "`--timeline` records what goes between the roles, and metrics count it",
    ),
    _Rule("device_config.lazy_parameter_init", _is_true, _ONE_WORKER_INITIALIZES),
    _Rule("training_config.lazy_parameter_init", _is_true, _ONE_WORKER_INITIALIZES),
    _Rule("multihost_config.socket_type", _is_one_of("mpi", "fabric"), "roles speak gRPC"),
    _Rule(
        "transformer_config.experimental.use_composite_layernorm", _is_true, "there is only one layer norm"
    ),
)


def check_supported(sections: Mapping[str, Any]) -> None:
    """Refuse settings of tt-train that Tiermesh does not support yet.

    Args:
        sections: sections as read, before their types are checked.

    Raises:
        Refused: there is such a setting; the first one is named.
    """
    for rule in _NOT_BUILT:
        value = rule.value(sections)
        if rule.applies(value):
            raise Refused(f"{rule.field}: {format_value(value)} is not supported yet; {rule.text}")


def check_external(sections: Mapping[str, Any]) -> None:
    """Refuse settings that have no meaning for an external job (Refused).

    Args:
        sections: sections as read.
    """
    for field, reason in _NOT_EXTERNAL.items():
        value = _Rule(field, _is_given, reason).value(sections)
        if _is_given(value):
            raise Refused(
                f"{field}: {format_value(value)} given with model_type external, expected none, as {reason}; remove it"
            )


def ineffective_settings(sections: Mapping[str, Any], device: DeviceConfig) -> list[str]:
    """Return one line for each setting of tt-train that is given but has no effect here.

    Args:
        sections: sections as read.
        device: the mesh resolved from their `device_config`.
    """
    placement = _NOT_PARALLEL if device.tensor_axis is None else _ALWAYS_BY_VOCABULARY
    return [
        f"{rule.field}: {format_value(value)} is without effect: {rule.text}"
        for rule in (*_WITHOUT_EFFECT, placement)
        if rule.applies(value := rule.value(sections))
    ]
