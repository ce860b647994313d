"""A job as the text of a config that a person could have written, from which another job like it can be made."""

from __future__ import annotations

from typing import Any

import yaml

from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.models import ExternalConfig, LlamaConfig
from services.config.origins import Origins
from services.config.sections import SECTIONS
from services.config.settings import list_settings


def write_config(config: JobConfig) -> str:
    """Return the YAML of a job's config, which is read as the same job if the files that it names are the same.

    It has all settings that the job reads, files by the paths that the job knows them by, and no code.
    """
    document: dict[str, Any] = {}
    for setting in list_settings(config, Origins()):
        _place(document, setting.key.split("."), setting.value)
    training = document["training_config"]
    if not config.replacement:
        training["epochs"] = "strict"
    _write_data(training, config)
    _write_model(document.get("transformer_config", {}), training, config)
    if isinstance(config.model, ExternalConfig):  # its processes have devices and data of their own
        for section in ("device_config", "eval_config"):
            document.pop(section, None)
    else:
        document["device_config"]["mesh_shape"] = _mesh_shape(config.device)
    if config.num_workers > 1 or config.pipeline is not None:
        document["multihost_config"]["enabled"] = True
    else:
        document.pop("multihost_config")
    ordered = {name: document[name] for name in SECTIONS if name in document}
    return yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True)


def _place(document: dict[str, Any], path: list[str], value: Any) -> None:
    """Put a value under its keys; a section's options go beside what is in it, and None is left out."""
    if value is None:
        return
    *parents, last = path
    for parent in parents:
        document = document.setdefault(parent, {})
    if isinstance(value, dict) and isinstance(document.get(last), dict):
        document[last] |= value
    else:
        document[last] = value


def _write_data(training: dict[str, Any], config: JobConfig) -> None:
    data = config.data
    if data is None:
        return
    if data.weights is not None:
        training["data_path"] = [{"path": file.path, "weight": file.weight} for file in data.files]
    if data.tokenizer_type == "none":  # which the kind of the files says
        del training["tokenizer_type"]


def _write_model(section: dict[str, Any], training: dict[str, Any], config: JobConfig) -> None:
    """Leave out what follows from other settings, so that it follows from them again after a change."""
    model, data = config.model, config.data
    if isinstance(model, LlamaConfig) and model.intermediate_dim is None:
        section.pop("intermediate_dim", None)
    if getattr(model, "vocab_size", None) is None:
        section.pop("vocab_size", None)
    elif config.pretrained is None and data is not None and any(file.kind == "text" for file in data.files):
        training["vocabulary"] = "config"


def _mesh_shape(device: DeviceConfig) -> list[Any]:
    shape = list(device.mesh_shape)
    if device.axis_order == ("data", "tensor"):
        return shape
    return [shape, ["tp", "fsdp" if device.enable_fsdp else "ddp"]]
