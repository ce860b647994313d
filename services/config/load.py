"""Reading of a job's YAML file with all that it includes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.config.foreign_keys import refuse_foreign_keys, refuse_misplaced_key
from services.config.job import JobConfig
from services.config.origins import Origins
from services.config.overrides import Override, parse_overrides
from services.config.paths import find_include, is_shipped
from services.config.refusals import format_value, unknown_key_error
from services.config.resolve.job import ResolvedJob, resolve_job
from services.config.section_names import rename_sections
from services.config.sections import MODEL_SECTIONS, NESTED_SECTIONS, OPTIMIZERS, SECTIONS
from services.config.yaml_files import read_document
from services.errors import Refused, RefusedWithPaths
from services.printable import printable_path


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> tuple[JobConfig, list[str]]:
    """Return the complete job that a training config in tt-train's format describes.

    Args:
        path: path of the YAML file.
        overrides: settings changed from the command line, each `key=value` with a YAML value. Keys are dotted
            (`training_config.max_steps`), or their last part alone (`max_steps`) if only one setting has it, or if the
            file gives only one of them.

    Returns:
        The job with absolute paths and the sha256 of its data, and a line for each setting of tt-train that has no
        effect here.

    Raises:
        Refused: something is wrong; one line about the first error, with field, value, what was expected and the fix.
    """
    job, _ = load_job_with_origins(path, overrides)
    return job.config, job.notices


def load_job_with_origins(path: str | Path, overrides: Sequence[str] = ()) -> tuple[ResolvedJob, Origins]:
    """Return the job of `load_job` with all that was found out, and the origins of the settings that were given."""
    document = read_document(Path(path))
    origins = Origins()
    for section, value in document.items():
        origins.note_file(section, value, Path(path))
    folder = Path(path).absolute().parent
    return _resolve(document, folder, overrides, origins), origins


def names_external(path: Path) -> bool:
    """Return whether a training config is that of an external job, without reading what it includes.

    Raises:
        Refused: the file can't be read.
    """
    document = read_document(path)
    sections = (document.get(name) for name in ("training_config", "transformer_config"))
    return any(isinstance(each, dict) and each.get("model_type") == "external" for each in sections)


def load_job_document(
    document: dict[Any, Any],
    *,
    folder: Path,
    overrides: Sequence[str] = (),
) -> tuple[JobConfig, list[str]]:
    """Return the job of a document that is read already; see `load_job`.

    Args:
        document: content of the YAML file; it is not changed.
        folder: folder that relative paths start from.
        overrides: settings changed from the command line.
    """
    job = _resolve(document, folder, overrides, Origins())
    return job.config, job.notices


def _resolve(
    document: dict[Any, Any], folder: Path, overrides: Sequence[str], origins: Origins
) -> ResolvedJob:
    """Return the job of a document; `origins` receives those of included and overridden settings."""
    document = rename_sections(document, origins)
    changes = parse_overrides(overrides, document)
    refuse_foreign_keys(document)
    for key, value in document.items():
        if key not in SECTIONS:
            refuse_misplaced_key("", key, value)
            raise unknown_key_error("", key, value, SECTIONS)
    if document.get("training_config") is None:
        raise Refused(
            "training_config: missing, expected the section that describes the training; give a training config, "
            "not a model's"
        )
    sections = {key: dict(value) if isinstance(value, dict) else value for key, value in document.items()}
    _apply(changes, sections, origins, after_includes=False)
    try:
        _read_includes(sections, folder, origins)
        _apply(changes, sections, origins, after_includes=True)
        job = resolve_job(sections, folder)
    except Refused as refused:
        if not origins.shipped:
            raise
        raise RefusedWithPaths("; ".join([str(refused), *origins.shipped])) from None
    return job._replace(notices=[*origins.shipped, *job.notices])


def _apply(
    changes: Sequence[Override], sections: dict[Any, Any], origins: Origins, *, after_includes: bool
) -> None:
    for change in changes:
        if change.after_includes == after_includes:
            change.apply(sections)
            origins.note_override(change.path, change.value)


def _read_includes(sections: dict[Any, Any], folder: Path, origins: Origins) -> None:
    """Replace paths of included files by their sections, and move sections that old files nest to the top level."""
    training = sections["training_config"]
    if isinstance(training, dict):
        for section in NESTED_SECTIONS:
            _move_up(sections, training, section, origins)
        _include_optimizer(training, folder, origins)
        model_path = training.get("model_config")
        if isinstance(model_path, str) and model_path:
            _include_model(sections, model_path, folder, origins)
    for section in SECTIONS:
        if section != "training_config" and isinstance(sections.get(section), str):
            sections[section] = _section_of_file(sections[section], section, folder, origins)


def _move_up(sections: dict[Any, Any], training: dict[Any, Any], section: str, origins: Origins) -> None:
    """Move a section, or the path of its file, out of `training_config`, where older files have it."""
    value, field = training.pop(section, None), f"training_config.{section}"
    if value is None or value == "":
        return
    if sections.get(section) is not None:
        raise Refused(f"{field}: given together with {section}, expected one of them; remove one")
    if not isinstance(value, (str, dict)):
        raise Refused(
            f"{field}: {format_value(value)} given, expected a path or a mapping; correct it or remove it"
        )
    sections[section] = value
    origins.note_moved(field, section, value)


def _find_include(text: str, field: str, folder: Path, kind: str, origins: Origins) -> Path:
    path = find_include(text, field=field, folder=folder, kind=kind)
    if is_shipped(path, folder):
        origins.note_shipped(field, path)
    return path


def _include_optimizer(training: dict[Any, Any], folder: Path, origins: Origins) -> None:
    """Replace the path of an optimizer's settings, under either of tt-train's keys, by the settings."""
    key = "optimizer_config" if training.get("optimizer_config") is not None else "optimizer"
    text, field = training.get(key), f"training_config.{key}"
    if not isinstance(text, str):
        return
    if key == "optimizer_config" and training.get("optimizer") is not None:
        raise Refused(
            f"{field}: {format_value(text)} given together with training_config.optimizer, expected one of them; "
            "remove one"
        )
    if text in OPTIMIZERS:
        raise Refused(
            f"{field}: {format_value(text)} given, expected a mapping or the path of one; write "
            f"optimizer: {{type: {text}}}"
        )
    path = _find_include(text, field, folder, "optimizer_configs", origins)
    included = read_document(path, field)
    training["optimizer"] = included.get("optimizer", included)
    training.pop("optimizer_config", None)
    origins.note_file("training_config.optimizer", training["optimizer"], path)


def _include_model(sections: dict[Any, Any], text: str, folder: Path, origins: Origins) -> None:
    field = "training_config.model_config"
    path = _find_include(text, field, folder, "model_configs", origins)
    included = read_document(path, field)
    refuse_foreign_keys(included)
    for key, value in included.items():
        if key not in (*MODEL_SECTIONS, "multihost_config"):
            raise unknown_key_error("", key, value, (*MODEL_SECTIONS, "multihost_config"))
    if not any(included.get(key) is not None for key in MODEL_SECTIONS):
        raise Refused(
            f"{field}: {printable_path(path)} has no transformer_config, expected a model's config; correct the path"
        )
    for key in MODEL_SECTIONS:
        if sections.get(key) is not None:
            raise Refused(
                f"{field}: {format_value(text)} given together with {key}, expected one of them; remove one "
                f"(single settings are changed by {key}.key=value on the command line)"
            )
    for key, value in included.items():
        if sections.get(key) is None:  # the job's own multihost_config goes before the model file's
            sections[key] = value
            origins.note_file(key, value, path)


def _section_of_file(text: str, section: str, folder: Path, origins: Origins) -> Any:
    """Return the section of that name from the file at a path."""
    kind = "model_configs" if section in MODEL_SECTIONS else section.replace("_config", "_configs")
    path = _find_include(text, section, folder, kind, origins)
    included = read_document(path, section)
    if included.get(section) is None:
        raise Refused(
            f"{section}: {printable_path(path)} has no {section}, expected a file with that section; correct the path"
        )
    origins.note_file(section, included[section], path)
    return included[section]
