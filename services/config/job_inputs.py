"""The inputs of a job: the files that it names by path and SHA-256. Everything that moves them asks here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.config.corpus import PYTHON_REFERENCE
from services.config.job import JobConfig
from services.config.job_parts import DataConfig
from services.config.pretrained import MODEL_PATH_FIELD
from services.pipeline.split import StageRun

CODE_FIELD = "--code"
"""What people give a job's code by."""


@dataclass(frozen=True)
class JobInput:
    """A file that a job names, or a folder of files.

    Attributes:
        field: setting that names it, dotted, for people.
        path: its absolute path on the host that the job was submitted from.
        files: SHA-256 of each file, by its path below `path`; the only key is empty if `path` is a file itself.
        identity: SHA-256 of the description of a file of token ids, which a copy of the file needs beside it
            (`TokenSidecar.identity_body`); None for other files.
        is_code: whether it is the archive of a folder of code, which is found by its SHA-256 alone.
    """

    field: str
    path: str
    files: Mapping[str, str]
    identity: str | None = None
    is_code: bool = False


def reads_data(job: JobConfig, stages: StageRun | None) -> bool:
    """Return whether a worker reads a job's corpus and tokenizer.

    The first stage takes inputs, the last one targets, and others neither. They read data only if nothing else says how
    many tokens there are.

    Args:
        job: the job.
        stages: stages of the worker; None if it holds the whole model.
    """
    if stages is None or job.vocabulary is None:
        return True
    return stages.first == 0 or stages.stop == job.stages


def inputs_of_job(job: JobConfig, stages: StageRun | None = None) -> list[JobInput]:
    """Return the inputs of a job: corpus, tokenizer, starting checkpoint and code. A built-in text is none.

    Args:
        job: the job.
        stages: stages of the worker whose inputs are asked for; None for all inputs.
    """
    inputs = [] if job.data is None or not reads_data(job, stages) else _inputs_of_data(job.data)
    if job.pretrained is not None:
        inputs.append(JobInput(MODEL_PATH_FIELD, job.pretrained.path, dict(job.pretrained.files)))
    if job.code is not None:
        inputs.append(JobInput(CODE_FIELD, job.code.path, {"": job.code.sha256}, is_code=True))
    return inputs


def _inputs_of_data(data: DataConfig) -> list[JobInput]:
    inputs = []
    for number, file in enumerate(data.files):
        if file.path != PYTHON_REFERENCE:
            field = f"training_config.data_path{f'[{number}]' if len(data.files) > 1 else ''}"
            inputs.append(JobInput(field, file.path, {"": file.sha256}, file.identity))
    if data.tokenizer_path is not None and data.tokenizer_sha256 is not None:
        inputs.append(
            JobInput("training_config.tokenizer_path", data.tokenizer_path, {"": data.tokenizer_sha256})
        )
    return inputs


def input_hashes(job: JobConfig) -> frozenset[str]:
    """Return the SHA-256 of all files of a job's inputs."""
    inputs = inputs_of_job(job)
    return frozenset(sha256 for each in inputs for sha256 in each.files.values()) | frozenset(
        each.identity for each in inputs if each.identity is not None
    )


def relocate_inputs(job: JobConfig, places: Mapping[str, Path]) -> JobConfig:
    """Return a job whose inputs are looked for elsewhere.

    Args:
        job: the job.
        places: new path of an input, by the path that the job names; others stay.
    """

    def place_of(path: str | None) -> str | None:
        return str(places[path]) if path is not None and path in places else path

    changes: dict[str, object] = {}
    if job.data is not None:
        files = tuple(file.model_copy(update={"path": place_of(file.path)}) for file in job.data.files)
        moved = {"files": files, "tokenizer_path": place_of(job.data.tokenizer_path)}
        changes["data"] = job.data.model_copy(update=moved)
    if job.pretrained is not None:
        changes["pretrained"] = job.pretrained.model_copy(update={"path": place_of(job.pretrained.path)})
    if job.code is not None:
        changes["code"] = job.code.model_copy(update={"path": place_of(job.code.path)})
    return job.model_copy(update=changes)
