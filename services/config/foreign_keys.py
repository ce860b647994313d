"""Keys of tt-train's other trainers, refused by what they are, and keys that stand in the wrong section.

Without this a key of another trainer would be taken for a misspelling. Without its unknown keys, its job would then
train something else than its author meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.config.refusals import dotted_name, format_value
from services.config.sections import SECTIONS, key_parents, section_keys
from services.errors import Refused


@dataclass(frozen=True)
class _Family:
    """Keys that belong together.

    Attributes:
        what: what the keys are, as the end of a sentence.
        fix: advice for the user.
        keys: dotted names of the keys.
    """

    what: str
    fix: str
    keys: tuple[str, ...]


_ELSEWHERE = "Tiermesh does not train that; run the job with tt-train"

_FAMILIES = (
    _Family(
        "a setting of GRPO, which is reinforcement learning",
        _ELSEWHERE,
        (
            "grpo_config",
            "training_config.grpo_config",
            "remote_rollout_config",
            "training_config.model_source",
        ),
    ),
    _Family(
        "a setting of diffusion models, which learn from images",
        _ELSEWHERE,
        (
            "diffusion_config",
            "dit_config",
            "training_config.ema_decay",
            "training_config.ema_interval",
            "training_config.hflip_augment",
            "eval_config.cfg_scale",
            "eval_config.sample_interval",
            "eval_config.sample_steps",
        ),
    ),
    _Family(
        "a setting of the MNIST example, which learns from images",
        _ELSEWHERE,
        ("training_config.logging_interval", "training_config.is_eval"),
    ),
    _Family(
        "a file of tt-train's weights (.msgpack)",
        "remove it; transformer_config.model_path starts from a Hugging Face checkpoint",
        ("training_config.model_path",),
    ),
    _Family("a BERT", _ELSEWHERE, ("bert_config",)),
    _Family(
        "a setting of LoRA",
        "Tiermesh trains all weights; remove it to do so",
        ("lora_config", "training_config.lora_config"),
    ),
    _Family(
        "a setting of context parallelism, which is not supported yet",
        "remove it",
        (
            "device_config.cp_backward",
            "device_config.cp_layout",
            "device_config.cp_rows_per_block_tiles",
            "device_config.cp_shift_transport",
        ),
    ),
)


def refuse_foreign_keys(sections: Mapping[Any, Any]) -> None:
    """Refuse keys of tt-train's other trainers.

    Args:
        sections: sections as read; one may be None or the path of a file.

    Raises:
        Refused: there is such a key; the line says what it is.
    """
    for family in _FAMILIES:
        for field in family.keys:
            section, _, key = field.rpartition(".")
            keys = sections.get(section) if section else sections
            if isinstance(keys, Mapping) and key in keys:
                raise Refused(f"{field}: {format_value(keys[key])} is {family.what}; {family.fix}")


def foreign_key_path(name: str) -> tuple[str, ...] | None:
    """Return the path of a key of another trainer, given by its last part or as a whole; None if there is none."""
    for family in _FAMILIES:
        for field in family.keys:
            if name in (field, field.rpartition(".")[2]):
                return tuple(field.split("."))
    return None


def refuse_misplaced_keys(sections: Mapping[str, Any]) -> None:
    """Refuse keys that another section has, with the place where they belong.

    Args:
        sections: sections as read, with includes.

    Raises:
        Refused: there is such a key; the line names its place.
    """
    for section in SECTIONS:
        given = sections.get(section)
        if not isinstance(given, Mapping) or _is_custom_model(section, sections):
            continue
        known = section_keys(section)
        for key, value in given.items():
            if key not in known:
                refuse_misplaced_key(section, key, value)


def refuse_misplaced_key(section: str, key: object, value: object) -> None:
    """Refuse an unknown key of a section if another section has it.

    Args:
        section: name of the section that has the key; empty at the top level.
        key: the key.
        value: the key's value.

    Raises:
        Refused: another section has the key; the line names its place.
    """
    places = key_parents(key) if isinstance(key, str) else []
    if places:
        named = " or ".join(dotted_name(*place, key) for place in places)
        raise Refused(
            f"{dotted_name(section, key)}: {format_value(value)} given in the wrong place, expected as {named}; move it"
        )


def _is_custom_model(section: str, sections: Mapping[str, Any]) -> bool:
    """Return whether a section is that of a model of the user's own, which has keys of its own."""
    if section != "transformer_config":
        return False
    named = [sections.get(each) for each in (section, "training_config")]
    types = [each.get("model_type") for each in named if isinstance(each, Mapping)]
    return any(isinstance(each, str) and ":" in each for each in types)
