"""Jobs that start from another job's checkpoint: what may differ between the two, and the config of one that goes on.

The checkpoint's tensors must be those of the new job's layout and update rule, and its `config.json` and tokenizer go
into the new job's checkpoints. So the model and the tokenizer are the same; data, schedule, batches, learning rate and
all else may differ. A job that continues has the same stages, unless it says that they change.
"""

from __future__ import annotations

import json
from typing import Any

from services.config.job import MIN_CHECKED_WORKERS, JobConfig
from services.config.job_parts import DataConfig, OptimizerConfig, StartConfig
from services.config.refusals import format_value
from services.errors import Refused
from services.pipeline.split import Split

_SECTIONS = {"linear_regression": "linear_regression_config", "mlp": "mlp_config"}
_FREE_MODEL_KEYS = frozenset({"dropout_prob", "runner_type", "training_samples", "noise"})
"""Keys of a model's config that neither the layout nor the model's files depend on."""
_SCHEDULES_WITHOUT_END = ("identity", "step")
"""Types of schedules that do not depend on `total_steps`."""


def check_start(job: JobConfig, earlier: JobConfig, tokenizer_sha256: str) -> None:
    """Check that a job can start from an earlier job's checkpoint.

    Args:
        job: the new job, with `start_from`.
        earlier: the job that it names.
        tokenizer_sha256: SHA-256 of the checkpoint's `tokenizer.json`; empty if it has none.

    Raises:
        Refused: a setting differs that must not; the first one is named.
    """
    start = job.start_from
    assert start is not None
    _check_model(job, earlier, start)
    _check_split(job, earlier, start)
    if job.optimizer.weight_decay_on != earlier.optimizer.weight_decay_on:
        raise _differs(
            start,
            "training_config.optimizer.weight_decay_on",
            job.optimizer.weight_decay_on,
            earlier.optimizer.weight_decay_on,
        )
    if start.optimizer:
        _check_update_rule(job.optimizer, earlier.optimizer, start)
    _check_tokenizer(job, earlier, start, tokenizer_sha256)


def _check_model(job: JobConfig, earlier: JobConfig, start: StartConfig) -> None:
    section = _SECTIONS.get(job.model.model_type, "transformer_config")
    given, expected = _model_fields(job), _model_fields(earlier)
    if given["model_type"] != expected["model_type"]:
        raise _differs(start, "training_config.model_type", given["model_type"], expected["model_type"])
    for key in given:
        if key not in _FREE_MODEL_KEYS and given[key] != expected[key]:
            raise _differs(start, f"{section}.{key}", given[key], expected[key])


def _check_split(job: JobConfig, earlier: JobConfig, start: StartConfig) -> None:
    """Check that a job that continues has the earlier one's stages, which decide what each chip must hold."""
    if start.step_counter == "restart" or start.change_split:
        return
    given, expected = (each.pipeline.split if each.pipeline else None for each in (job, earlier))
    if given == expected:
        return
    raise Refused(
        f"multihost_config.pipeline_parallel_config: {_describe_split(given)} given, but job {start.job}, which this "
        f"job continues, has {_describe_split(expected)}; write the same, or start_from.change_split: true"
    )


def _describe_split(split: Split | None) -> str:
    if split is None:
        return "no stages"
    ranges = f" in {split.ranges_per_stage} ranges each" if split.ranges_per_stage > 1 else ""
    return f"{split.stages} stages of {format_value(list(split.blocks_per_stage))} blocks{ranges}"


def _model_fields(job: JobConfig) -> dict[str, Any]:
    """Return the fields of a job's model, with the vocabulary that it has even if only the data name it."""
    fields: dict[str, Any] = job.model.model_dump()
    if "vocab_size" in fields:
        fields["vocab_size"] = job.vocabulary
    return fields


def _check_update_rule(given: OptimizerConfig, expected: OptimizerConfig, start: StartConfig) -> None:
    """Check that both update rules keep the same state."""
    for key, ours, theirs in (
        ("type", given.type, expected.type),
        ("amsgrad", given.amsgrad, expected.amsgrad),
        ("momentum", given.momentum > 0, expected.momentum > 0),
    ):
        if ours != theirs:
            hint = "; or begin with a new state: start_from.optimizer: false"
            field = f"training_config.optimizer.{key}"
            raise _differs(start, field, getattr(given, key), getattr(expected, key), hint)


def _check_tokenizer(job: JobConfig, earlier: JobConfig, start: StartConfig, stored_sha256: str) -> None:
    """Check that token ids mean the same in both jobs."""
    given, expected = job.data, earlier.data
    if given is None or expected is None or _tokenizer(given) == _tokenizer(expected):
        return
    if given.tokenizer_type == "none":  # token ids, which the size of the vocabulary is checked against
        return
    if stored_sha256 and given.tokenizer_sha256 == stored_sha256:
        return
    raise Refused(
        f"training_config.tokenizer_path: {format_value(given.tokenizer_path or given.tokenizer_type)} is another "
        f"tokenizer than that of job {start.job}, whose checkpoint this job starts from; write tokenizer_type: bpe "
        "and, as tokenizer_path, the tokenizer.json of that checkpoint (tiermesh download)"
    )


def _tokenizer(data: DataConfig) -> tuple[str | None, ...]:
    """Return what a tokenizer follows from: its file, or the texts that its characters are those of."""
    texts = tuple(file.sha256 for file in data.files) if data.tokenizer_type == "char" else ()
    return data.tokenizer_type, data.tokenizer_sha256, *texts


def _differs(start: StartConfig, field: str, given: object, expected: object, hint: str = "") -> Refused:
    return Refused(
        f"{field}: {format_value(given)} given, but job {start.job}, whose checkpoint this job starts from, has "
        f"{format_value(expected)}; write {format_value(expected)}{hint}"
    )


def pin_start(job: JobConfig, step: int, model_sha256: str) -> JobConfig:
    """Return a job whose `start_from` names one checkpoint for good.

    Args:
        job: the job, with `start_from`.
        step: step of the checkpoint.
        model_sha256: SHA-256 of its model.

    Raises:
        Refused: the job expects another model, or has no step left to make.
    """
    start = job.start_from
    assert start is not None
    if start.model_sha256 not in (None, model_sha256):
        raise Refused(
            f"training_config.start_from.model_sha256: {start.model_sha256} given, but the checkpoint of step {step} "
            f"of job {start.job} has {model_sha256}; correct it or remove it"
        )
    pinned = start.model_copy(update={"step": step, "model_sha256": model_sha256})
    return JobConfig.from_json(job.model_copy(update={"start_from": pinned}).to_json())


def continued(
    earlier: JobConfig, job: str, *, step: int | None, steps: int, total_steps: int | None
) -> JobConfig:
    """Return the config of a job that goes on where an earlier one ended.

    Args:
        earlier: config of the earlier job.
        job: its id.
        step: step of the checkpoint to go on from; None for the newest.
        steps: number of steps of the whole, those before included.
        total_steps: step at which the schedule's decay ends; None leaves it as it is.

    Raises:
        Refused: a number is out of range, or the schedule ends before `steps` and nobody said what comes then.
    """
    schedule = earlier.schedule
    fields = earlier.model_dump(mode="json")
    if total_steps is not None:
        fields["schedule"]["total_steps"] = total_steps
    elif schedule.type not in _SCHEDULES_WITHOUT_END and schedule.total_steps < steps:
        raise Refused(
            f"total_steps: none given, but the schedule {schedule.type} of job {job} ends at step "
            f"{schedule.total_steps} of {steps}; give {steps} to stretch it (the learning rate then jumps), or "
            f"{schedule.total_steps} to go on at its last rate"
        )
    if earlier.verify_fraction:  # earlier versions took jobs that one worker could make
        fields["min_workers"] = max(earlier.min_workers, MIN_CHECKED_WORKERS)
    start = {"job": job, "step": step, "step_counter": "continue"}
    return JobConfig.from_json(json.dumps(fields | {"start_from": start, "pretrained": None, "steps": steps}))
