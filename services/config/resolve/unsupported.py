"""What of tt-train's settings is not built yet, and what is without effect here: told in words, never passed over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from services.config.device import DeviceConfig
from services.config.refusals import format_value
from services.errors import Refused


@dataclass(frozen=True)
class _Rule:
    """A setting, for which of its values the rule holds, and what the reader needs to know."""

    field: str
    holds: Callable[[Any], bool]
    text: str

    def value(self, sections: Mapping[str, Any]) -> Any:
        """What a config gives the setting; None if it doesn't."""
        inner: Any = sections
        for part in self.field.split("."):
            inner = inner.get(part) if isinstance(inner, Mapping) else None
        return inner


def _on(value: Any) -> bool:
    return value is True


def _given(value: Any) -> bool:
    return value is not None and value != "" and value != [] and value != {}


def _one_of(*values: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in values


def _above_zero(value: Any) -> bool:
    return isinstance(value, int) and value > 0


_LATER_MODELS = _one_of("deepseek", "qwen3", "bert")
_INTEGERS = _one_of("int8", "int4")
_NOT_BUILT = (
    _Rule("training_config.model_type", _LATER_MODELS, "use gpt2 or llama"),
    _Rule("transformer_config.model_type", _LATER_MODELS, "use gpt2 or llama"),
    _Rule("device_config.enable_pp", _on, "use enable_ddp, enable_fsdp or enable_tp"),
    _Rule("device_config.enable_cp", _on, "use enable_ddp, enable_fsdp or enable_tp"),
    _Rule("multihost_config.pipeline_parallel_config", _given, "remove it: the job then trains in tiers"),
    _Rule("training_config.use_no_op", _on, "set learning_rate: 0 instead"),
    _Rule(
        "training_config.use_kahan_summation", _on, "remove it: weights are float32 here, which needs none"
    ),
    _Rule("training_config.wire_dtype", _INTEGERS, "use bfloat16"),
    _Rule("training_config.wire_dtype.gradients", _INTEGERS, "use bfloat16"),
    _Rule("training_config.wire_dtype.weights", _INTEGERS, "use bfloat16"),
    _Rule("training_config.accumulation", _one_of("mesh"), "use host"),
    _Rule("training_config.optimizer.type", _one_of("Muon", "NoOp"), "use AdamW or SGD"),
    _Rule("training_config.optimizer.amsgrad", _on, "set it to false"),
    _Rule(
        "training_config.optimizer.kahan_summation",
        _on,
        "remove it: weights are float32 here, which needs none",
    ),
    _Rule("scheduler_config.hold_steps", _above_zero, "remove it, or use scheduler_type: warmup_cosine"),
    _Rule(
        "scheduler_config.beta1_warmup_steps", _above_zero, "remove it: beta1 stays what the optimizer has"
    ),
)

_ONE_OPTIMIZER = "the optimizer role has float32 weights and state whatever the variant"
_EMBEDDING_PLACEMENT = "transformer_config.embedding_placement"
_NOT_PARALLEL = _Rule(
    _EMBEDDING_PLACEMENT,
    _one_of("vocab_parallel", "feature_parallel"),
    "it matters under tensor parallel only",
)
_ALWAYS_BY_VOCABULARY = _Rule(
    _EMBEDDING_PLACEMENT,
    _one_of("replicated", "feature_parallel"),
    "under tensor parallel, tables are split by vocabulary",
)
_WITHOUT_EFFECT = (
    _Rule("training_config.num_epochs", _given, "max_steps alone ends a job"),
    _Rule("training_config.checkpoint_dir", _given, "checkpoints lie in the optimizer's --state-dir"),
    _Rule("training_config.use_moreh_adamw", _on, _ONE_OPTIMIZER),
    _Rule(
        "training_config.optimizer.type",
        _one_of("MorehAdamW", "AdamWComposite", "SGDComposite"),
        _ONE_OPTIMIZER,
    ),
    _Rule("training_config.optimizer.stochastic_rounding", _on, _ONE_OPTIMIZER),
    _Rule("device_config.device_ids", _given, "a worker takes the chips that its TT_VISIBLE_DEVICES names"),
    _Rule("multihost_config.socket_type", _one_of("mpi", "fabric"), "roles speak gRPC"),
    _Rule("transformer_config.experimental.use_composite_layernorm", _on, "there is one layer norm"),
    _Rule("scheduler_config.max_lr", _given, "the peak is the optimizer's lr"),
    _Rule("scheduler_config.beta1_start", _given, "beta1 is the optimizer's"),
    _Rule("scheduler_config.beta1_end", _given, "beta1 is the optimizer's"),
)


def check_supported(sections: Mapping[str, Any]) -> None:
    """Refuse settings of tt-train that Tiermesh does not have yet, as such.

    Args:
        sections: as read, before their types are checked.

    Raises:
        Refused: for the first such setting.
    """
    for rule in _NOT_BUILT:
        value = rule.value(sections)
        if rule.holds(value):
            raise Refused(f"{rule.field}: {format_value(value)} is not built yet; {rule.text}")


def ineffective_settings(sections: Mapping[str, Any], device: DeviceConfig) -> list[str]:
    """One line for each setting of tt-train that is given, and without effect here.

    Args:
        sections: as read.
        device: what became of their `device_config`.
    """
    placement = _NOT_PARALLEL if device.tensor_axis is None else _ALWAYS_BY_VOCABULARY
    return [
        f"{rule.field}: {format_value(value)} is without effect here: {rule.text}"
        for rule in (*_WITHOUT_EFFECT, placement)
        if rule.holds(value := rule.value(sections))
    ]
