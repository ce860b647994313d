"""Resolution of the sections that users write to the complete job: defaults filled in, files found and hashed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from services.config.foreign_keys import refuse_foreign_keys, refuse_misplaced_keys
from services.config.job import MIN_CHECKED_WORKERS, JobConfig, check_spec_size
from services.config.job_parts import SamplingConfig
from services.config.models import ExternalConfig
from services.config.refusals import validation_refused
from services.config.resolve.batches import resolve_batches
from services.config.resolve.data import resolve_data
from services.config.resolve.device import resolve_device
from services.config.resolve.length import (
    check_evaluation,
    counts_epochs,
    known_evaluation_batches,
    known_training_windows,
    max_steps_of,
    steps_of_epochs,
)
from services.config.resolve.model import resolve_model
from services.config.resolve.optimizer import resolve_optimizer, resolve_schedule, schedule_notices
from services.config.resolve.pipeline import balance_pipeline, resolve_num_workers, resolve_pipeline
from services.config.resolve.unsupported import check_external, check_supported, ineffective_settings
from services.config.sections import (
    DeviceSection,
    EvalSection,
    MultihostSection,
    SchedulerSection,
    TrainingSection,
    parse_section,
)


class ResolvedJob(NamedTuple):
    """A job, and what was found out on the way to it.

    Attributes:
        config: the complete job.
        notices: a line for each setting without effect.
        training_windows: number of training windows (or samples) of all files; None if only workers count the tokens.
    """

    config: JobConfig
    notices: list[str]
    training_windows: int | None


def resolve_job(sections: Mapping[str, Any], folder: Path) -> ResolvedJob:
    """Return the complete job that the sections describe.

    Args:
        sections: sections by name (`sections.SECTIONS`), with includes read and overrides applied.
        folder: folder of the config, for relative paths of data.

    Raises:
        Refused: something is wrong or not supported yet; the first error is named.
    """
    check_supported(sections)
    refuse_foreign_keys(sections)
    refuse_misplaced_keys(sections)
    training = parse_section(sections.get("training_config"), "training_config", TrainingSection)
    scheduler = parse_section(sections.get("scheduler_config"), "scheduler_config", SchedulerSection)
    try:
        resolved = resolve_model(sections, training, folder)
        if isinstance(resolved.model, ExternalConfig):
            check_external(sections)
        device, device_notices = resolve_device(sections.get("device_config"), training.mixed_precision)
        notices = [*ineffective_settings(sections, device), *resolved.notices, *device_notices]
        batches = resolve_batches(training, device, notices)
        optimizer = resolve_optimizer(training, scheduler, notices)
        notices += schedule_notices(training, scheduler, optimizer)
        if training.start_from is not None and resolved.pretrained is not None:
            notices.append(
                "transformer_config.model_path: gives the model's sizes and tokenizer alone; the weights are those of "
                f"job {training.start_from.job} (training_config.start_from)"
            )
        multihost = parse_section(sections.get("multihost_config"), "multihost_config", MultihostSection)
        workers = resolve_num_workers(multihost, notices)
        pipeline = resolve_pipeline(
            multihost,
            parse_section(sections.get("device_config"), "device_config", DeviceSection).enable_pp,
            resolved.model,
            device,
            workers,
            batches.gradient_accumulation_steps,
        )
        data = resolve_data(training, resolved, folder, notices)
        check_evaluation(training, data, batches.validation_batch_size)
        steps = max_steps_of(training)
        # As in tt-train, the schedule is that of all max_steps, also if the epochs end before.
        schedule = resolve_schedule(training, scheduler, optimizer, steps)
        vocabulary = data.config.vocab_size if data.config else None
        pipeline = balance_pipeline(pipeline, multihost, data.model, vocabulary)
        in_epochs = counts_epochs(training, multihost.enabled, notices)
        if in_epochs:
            pipelines = workers // (pipeline.stages if pipeline else 1)
            sequences = pipelines * batches.gradient_accumulation_steps * batches.batch_size
            steps = steps_of_epochs(training, data, sequences, notices)
        job = JobConfig(
            name=training.project_name,
            seed=training.seed,
            steps=steps,
            batch_size=batches.batch_size,
            validation_batch_size=batches.validation_batch_size,
            validation_batches=training.validation_batches,
            evaluation_batches=known_evaluation_batches(training, data, batches.validation_batch_size),
            num_workers=workers,
            pipeline=pipeline,
            gradient_accumulation_steps=batches.gradient_accumulation_steps,
            evaluate_every=training.eval_every,
            checkpoint_every=training.model_save_interval,
            checkpoint=training.checkpoint,
            model=data.model,
            pretrained=None if training.start_from else resolved.pretrained,
            start_from=training.start_from,
            device=device,
            optimizer=optimizer,
            schedule=schedule,
            clip_grad_norm=training.clip_grad_norm_max_norm if training.use_clip_grad_norm else None,
            data=data.config,
            replacement=not in_epochs,
            sampling=_sampling(sections.get("eval_config")),
            wire_dtype=training.wire_dtype,
            exact=training.exact,
            min_workers=training.min_workers or (MIN_CHECKED_WORKERS if training.verify_fraction else 1),
            max_workers=training.max_workers,
            preemptible=training.preemptible,
            priority=training.priority,
            on_non_finite=training.on_non_finite,
            verify_fraction=training.verify_fraction,
            on_faulty=training.on_faulty,
            tracking=training.tracking,
            notify=training.notify,
        )
    except ValidationError as error:  # from rules across fields of several sections
        raise validation_refused(error, "", JobConfig) from None
    job.check_checkers()
    check_spec_size(job.to_json())
    return ResolvedJob(job, notices, known_training_windows(data))


def _sampling(value: Any) -> SamplingConfig:
    section = parse_section(value, "eval_config", EvalSection)
    return SamplingConfig(
        repetition_penalty=section.repetition_penalty,
        temperature=section.temperature,
        top_k=max(section.top_k, 0),
        top_p=section.top_p,
    )
