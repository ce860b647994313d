"""The inputs of a job: the files that it names by path and SHA-256. Everything that moves them asks here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.config.corpus import PYTHON_REFERENCE
from services.config.job import JobConfig
from services.config.pretrained import MODEL_PATH_FIELD


@dataclass(frozen=True)
class JobInput:
    """A file that a job names, or a folder of files.

    Attributes:
        field: setting that names it, dotted, for people.
        path: its absolute path on the host that the job was submitted from.
        files: SHA-256 of each file, by its path below `path`; the only key is empty if `path` is a file itself.
    """

    field: str
    path: str
    files: Mapping[str, str]


def inputs_of_job(job: JobConfig) -> list[JobInput]:
    """Return the inputs of a job: corpus, tokenizer and starting checkpoint. A built-in text is none."""
    inputs = []
    data = job.data
    if data is not None and data.path != PYTHON_REFERENCE:
        inputs.append(JobInput("training_config.data_path", data.path, {"": data.sha256}))
    if data is not None and data.tokenizer_path is not None and data.tokenizer_sha256 is not None:
        inputs.append(
            JobInput("training_config.tokenizer_path", data.tokenizer_path, {"": data.tokenizer_sha256})
        )
    if job.pretrained is not None:
        inputs.append(JobInput(MODEL_PATH_FIELD, job.pretrained.path, dict(job.pretrained.files)))
    return inputs


def input_hashes(job: JobConfig) -> frozenset[str]:
    """Return the SHA-256 of all files of a job's inputs."""
    return frozenset(sha256 for each in inputs_of_job(job) for sha256 in each.files.values())


def relocate_inputs(job: JobConfig, places: Mapping[str, Path]) -> JobConfig:
    """Return a job whose inputs are looked for elsewhere.

    Args:
        job: the job.
        places: new path of an input, by the path that the job names; others stay.
    """
    changes: dict[str, object] = {}
    if job.data is not None:
        moved: dict[str, object] = {}
        if job.data.path in places:
            moved["path"] = str(places[job.data.path])
        if job.data.tokenizer_path is not None and job.data.tokenizer_path in places:
            moved["tokenizer_path"] = str(places[job.data.tokenizer_path])
        changes["data"] = job.data.model_copy(update=moved)
    if job.pretrained is not None and job.pretrained.path in places:
        changes["pretrained"] = job.pretrained.model_copy(update={"path": str(places[job.pretrained.path])})
    return job.model_copy(update=changes)
