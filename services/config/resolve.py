"""From the sections that people write to the complete job: defaults filled in, files found and hashed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from services.config.corpus import PYTHON_REFERENCE, builtin_text, scan
from services.config.job import JobConfig
from services.config.learning import resolve_optimizer, resolve_schedule, schedule_notices
from services.config.parts import DataConfig, DeviceConfig, GPT2Config, LinearRegressionConfig, SamplingConfig
from services.config.places import find_data
from services.config.problems import refusal, shown, shown_path
from services.config.schema import (
    DeviceSection,
    EvalSection,
    LinearRegressionSection,
    MultihostSection,
    SchedulerSection,
    TrainingSection,
    TransformerSection,
)
from services.config.support import notices_of, refuse_what_is_not_built
from services.config.validate import validate
from services.errors import Refused

_TOKEN_ID_SUFFIXES = (".csv", ".yaml", ".yml", ".json", ".bin", ".npy")


def resolve(sections: Mapping[str, Any], folder: Path) -> tuple[JobConfig, list[str]]:
    """The complete job that sections ask for.

    Args:
        sections: by name (`schema.SECTIONS`), includes read and overrides applied.
        folder: of the config, for relative paths of data.

    Returns:
        The job, and a line for each setting that is without effect.

    Raises:
        Refused: for the first thing that is wrong, or not built yet.
    """
    refuse_what_is_not_built(sections)
    training = validate(sections.get("training_config"), "training_config", TrainingSection)
    scheduler = validate(sections.get("scheduler_config"), "scheduler_config", SchedulerSection)
    try:
        model, notices = _model(sections, training)
        notices = [*notices_of(sections), *notices, *schedule_notices(training, scheduler)]
        workers = _num_workers(sections.get("multihost_config"), notices)
        device = _device(sections.get("device_config"))
        steps = _steps(training)
        job = JobConfig(
            name=training.project_name,
            seed=training.seed,
            steps=steps,
            batch_size=training.batch_size,
            validation_batch_size=training.validation_batch_size or _validation_batch_size(training, device),
            num_workers=workers,
            gradient_accumulation_steps=training.gradient_accumulation_steps,
            evaluate_every=training.eval_every,
            checkpoint_every=training.model_save_interval,
            model=model,
            device=device,
            optimizer=resolve_optimizer(training),
            schedule=resolve_schedule(training, scheduler, steps),
            clip_grad_norm=training.clip_grad_norm_max_norm if training.use_clip_grad_norm else None,
            data=_data(training, model, folder, notices),
            sampling=_sampling(sections.get("eval_config")),
            wire_dtype=training.wire_dtype,
            exact=training.exact,
        )
    except ValidationError as error:  # rules across fields, which the sections alone can't hold
        raise refusal(error, "", JobConfig) from None
    return job, notices


def _steps(training: TrainingSection) -> int:
    given = training.model_fields_set & {"steps", "max_steps"}
    if len(given) == 2 and training.steps != training.max_steps:
        raise Refused(
            f"training_config.steps: {training.steps} given beside max_steps: {training.max_steps}, "
            "expected one of them; remove steps"
        )
    return training.steps or training.max_steps


def _validation_batch_size(training: TrainingSection, device: DeviceConfig) -> int:
    """tt-train's half of the batch, rounded down to what the devices can share."""
    split = device.data_parallel_size
    return max(training.batch_size // 2 // split, 1) * split


def _model(
    sections: Mapping[str, Any], training: TrainingSection
) -> tuple[GPT2Config | LinearRegressionConfig, list[str]]:
    named = training.model_type
    transformer, regression = sections.get("transformer_config"), sections.get("linear_regression_config")
    if regression is not None and transformer is not None:
        raise Refused(
            "linear_regression_config: given beside transformer_config, expected one model; remove one of them"
        )
    if named == "gpt2" and regression is not None:
        raise Refused(
            'training_config.model_type: "gpt2" given with a linear_regression_config, expected '
            "linear_regression; correct it or remove it"
        )
    if named == "linear_regression" and transformer is not None:
        raise Refused(
            'training_config.model_type: "linear_regression" given with a transformer_config, expected gpt2; '
            "correct it or remove it"
        )
    if named == "linear_regression" or regression is not None:
        section = validate(regression, "linear_regression_config", LinearRegressionSection)
        return LinearRegressionConfig(**section.model_dump()), []
    notices = []
    if transformer is None:
        notices.append(
            "training_config.model_config: not given; tt-train's default GPT-2 is trained "
            "(6 blocks, 6 heads, 384 dimensions, 128 tokens)"
        )
    gpt2 = validate(transformer, "transformer_config", TransformerSection)
    model = GPT2Config(
        num_heads=gpt2.num_heads,
        embedding_dim=gpt2.embedding_dim,
        num_blocks=gpt2.num_blocks,
        max_sequence_length=gpt2.max_sequence_length,
        dropout_prob=gpt2.dropout_prob,
        weight_tying=gpt2.weight_tying in ("enabled", True),
        positional_embedding_type=gpt2.positional_embedding_type,
        bias=gpt2.bias,
        activation=gpt2.activation,
        runner_type=gpt2.runner_type,
    )
    return model, notices


def _num_workers(value: Any, notices: list[str]) -> int:
    multihost = validate(value, "multihost_config", MultihostSection)
    workers = 1 if multihost.num_workers is None else multihost.num_workers
    if not multihost.enabled:
        if workers > 1:
            notices.append(
                f"multihost_config.num_workers: {workers} is without effect: multihost_config.enabled is false"
            )
        return 1
    if workers == 0:
        raise Refused(
            "multihost_config.num_workers: 0 given, expected at least 1; write for example num_workers: 2"
        )
    return workers


def _device(value: Any) -> DeviceConfig:
    section = validate(value, "device_config", DeviceSection)
    shape, names = section.mesh_shape, []
    if len(shape) == 2 and isinstance(shape[0], list) and isinstance(shape[1], list):
        shape, names = shape
    lengths = [length for length in shape if type(length) is int and 1 <= length <= 1024]
    if len(shape) != 2 or len(lengths) != 2:
        raise Refused(
            f"device_config.mesh_shape: {shown(section.mesh_shape)} given, expected [rows, columns], each from 1 to "
            "1024; write for example mesh_shape: [1, 8]"
        )
    enable_ddp = section.enable_ddp
    if names:
        if len(names) != 2 or any(name not in ("fsdp", "ddp", "dp", "tp") for name in names):
            raise Refused(
                f"device_config.mesh_shape: axes {shown(names)} given, expected two names of fsdp, ddp, dp, tp; "
                'write for example mesh_shape: [[8, 1], ["fsdp", "tp"]]'
            )
        used = [name for name, length in zip(names, lengths, strict=True) if length > 1]
        if "tp" in used:
            raise Refused(
                f"device_config.mesh_shape: {shown(section.mesh_shape)} is not built yet (tensor parallel); "
                "give the tp axis the length 1"
            )
        enable_ddp = enable_ddp or bool(used)
    return DeviceConfig(
        mesh_shape=(lengths[0], lengths[1]),
        enable_ddp=enable_ddp,
        backend=section.backend,
        dtype=section.dtype,
    )


def _sampling(value: Any) -> SamplingConfig:
    section = validate(value, "eval_config", EvalSection)
    return SamplingConfig(
        repetition_penalty=section.repetition_penalty,
        temperature=section.temperature,
        top_k=max(section.top_k, 0),
        top_p=section.top_p,
    )


def _data(
    training: TrainingSection,
    model: GPT2Config | LinearRegressionConfig,
    folder: Path,
    notices: list[str],
) -> DataConfig | None:
    if isinstance(model, LinearRegressionConfig):
        for key in sorted(training.model_fields_set & {"data_path", "tokenizer_type", "tokenizer_path"}):
            notices.append(
                f"training_config.{key}: without effect: linear regression makes its data from the seed"
            )
        return None
    path, sha256, characters = _corpus(training.data_path, folder)
    if training.tokenizer_type == "char":
        _hold_length(training.data_path, characters, model.max_sequence_length)
        if training.tokenizer_path:
            notices.append("training_config.tokenizer_path: without effect with tokenizer_type char")
        return DataConfig(path=path, sha256=sha256)
    tokenizer_path, tokenizer_sha256 = _tokenizer(training.tokenizer_path, folder)
    return DataConfig(
        path=path,
        sha256=sha256,
        tokenizer_type="bpe",
        tokenizer_path=tokenizer_path,
        tokenizer_sha256=tokenizer_sha256,
    )


def _corpus(text: str, folder: Path) -> tuple[str, str, int]:
    """Absolute path (or name of a built-in text), sha256, characters."""
    field = "training_config.data_path"
    if text.startswith("builtin:"):
        if text != PYTHON_REFERENCE:
            raise Refused(f"{field}: {shown(text)} given, expected a path or {PYTHON_REFERENCE}; correct it")
        content = builtin_text()
        return text, hashlib.sha256(content.encode()).hexdigest(), len(content)
    if Path(text).suffix in _TOKEN_ID_SUFFIXES:
        raise Refused(
            f"{field}: {shown(text)} is not built yet (a file of token ids); give the text as a .txt, "
            "with tokenizer_type and tokenizer_path"
        )
    path = find_data(text, field=field, folder=folder)
    return str(path), *scan(path, field)


def _hold_length(data_path: str, characters: int, window: int) -> None:
    """Hold the corpus to be long enough for one training window and one held-out prediction."""
    training = int(0.9 * characters)
    if training < window + 1 or characters - training < 2:
        raise Refused(
            f"training_config.data_path: {shown(data_path)} has {characters} characters, expected at least "
            f"{-(-(window + 1) * 10 // 9)} for windows of {window}; give a longer text or a smaller "
            "transformer_config.max_sequence_length"
        )


def _tokenizer(text: str | None, folder: Path) -> tuple[str, str]:
    """Absolute path and sha256 of the `tokenizer.json` that a path names, itself or its folder."""
    field = "training_config.tokenizer_path"
    if not text:
        raise Refused(
            f"{field}: none given, expected a tokenizer.json with tokenizer_type bpe; give its path"
        )
    if Path(text).suffix != ".json":
        text = f"{text}/tokenizer.json"
    path = find_data(text, field=field, folder=folder)
    try:
        content = path.read_bytes()
        parsed = json.loads(content)
    except OSError as error:
        raise Refused(
            f"{field}: {shown_path(path)} can't be read ({error.strerror}); make it readable"
        ) from None
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict) or "model" not in parsed:
        raise Refused(
            f"{field}: {shown_path(path)} is no tokenizer.json, expected one of Hugging Face tokenizers; "
            "correct the path"
        )
    return str(path), hashlib.sha256(content).hexdigest()
