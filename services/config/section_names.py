"""Other names of sections: those of tt-train's first configs, and those of JAX trainers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.config.origins import Origins
from services.config.refusals import format_value
from services.config.sections import MODEL_SECTIONS
from services.errors import Refused

_RENAMED = {"mpi_config": "multihost_config", "training": "training_config"}
"""Names of sections by their other names."""
_JAX_MODEL = "model"
"""Section of JAX trainers that has the mesh beside the model's settings."""
_MESH = "mesh_shape"


def rename_sections(document: Mapping[Any, Any], origins: Origins) -> dict[Any, Any]:
    """Return a document whose sections have the names of `sections.SECTIONS`; the given one is not changed.

    Args:
        document: sections as read.
        origins: receives the origins of settings under their new names.

    Raises:
        Refused: a section is given under two names.
    """
    renamed = dict(document)
    for old, new in _RENAMED.items():
        if old in renamed:
            _place(renamed, new, renamed.pop(old), old, origins)
    model = renamed.get(_JAX_MODEL)
    if isinstance(model, Mapping):
        others = {key: value for key, value in model.items() if key != _MESH}
        del renamed[_JAX_MODEL]
        if _MESH in model:
            device = renamed.get("device_config")
            if device is not None and (not isinstance(device, Mapping) or _MESH in device):
                raise Refused(
                    f"{_JAX_MODEL}.{_MESH}: {format_value(model[_MESH])} given together with device_config, expected "
                    f"one of them; write it as device_config.{_MESH} alone"
                )
            renamed["device_config"] = {**(device or {}), _MESH: model[_MESH]}
            origins.note_moved(f"{_JAX_MODEL}.{_MESH}", f"device_config.{_MESH}", model[_MESH])
        if others:
            _place(renamed, "transformer_config", others, _JAX_MODEL, origins)
    return renamed


def _place(sections: dict[Any, Any], new: str, value: Any, old: str, origins: Origins) -> None:
    if value is None:
        return
    if sections.get(new) is not None:
        raise Refused(f"{old}: given together with {new}, expected one of them; remove one")
    sections[new] = value
    origins.note_moved(old, new, value)


def rename_key(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parts of a dotted key with the section's name of `sections.SECTIONS`.

    `training_config.model_config.KEY` means a key of the model whose file that is.
    """
    first, *others = parts
    if not others:
        return parts
    if first in _RENAMED:
        return (_RENAMED[first], *others)
    if first == _JAX_MODEL:
        return ("device_config" if others[0] == _MESH else "transformer_config", *others)
    for path in (("training_config", "model_config"), ("model_config",)):
        inner = parts[len(path) :]
        if parts[: len(path)] == path and inner:
            return inner if inner[0] in MODEL_SECTIONS else ("transformer_config", *inner)
    return parts
