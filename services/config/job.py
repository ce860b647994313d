"""The complete job: all that a cluster needs to know of a training run, in one record that travels as JSON."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32
from services.caps import Cap, OverCap
from services.config.bounds import check_batches, check_mesh_size, check_model_size, check_step_size
from services.config.device import DeviceConfig
from services.config.field_types import (
    MOST_WIDTH,
    BatchSize,
    ConfigRecord,
    Fraction,
    MicroBatchCount,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PrintableName,
    Priority,
    TargetName,
)
from services.config.job_parts import (
    CheckpointConfig,
    CodeConfig,
    DataConfig,
    OptimizerConfig,
    PretrainedConfig,
    SamplingConfig,
    ScheduleConfig,
    StartConfig,
    TrackingConfig,
    TrackingConfigField,
    WireConfig,
    WireConfigField,
)
from services.config.mesh_fit import check_mesh_fit
from services.config.models import CustomConfig, ExternalConfig, ModelConfig, OwnConfig, RegressionConfig
from services.config.parameters import model_parts
from services.config.pipeline import PipelineConfig, check_pipeline
from services.config.refusals import validation_refused
from services.errors import Refused
from services.printable import printable_path
from services.protocol.features import needed_features
from services.protocol.plan import (
    MOST_EVALUATION_BATCHES,
    EvaluationBatches,
    JobPlan,
    ParameterCount,
    Schedule,
    WireTypes,
)
from services.tensors.layout import MAX_ELEMENTS

MOST_SPEC_BYTES = 1 << 18
"""Maximum length of a job as JSON. The aggregator keeps it in memory, and sends it in one message."""

MIN_CHECKED_WORKERS = 2
"""Least number of workers of a job that has `verify_fraction`."""

_DTYPES = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16}


class JobConfig(ConfigRecord):
    """One training run, resolved: without includes and relative paths, and independent of the reader's machine.

    Attributes:
        name: name for people.
        seed: seed of data, dropout and initial weights.
        steps: number of optimizer updates.
        batch_size: sequences (or samples) of a micro-batch, over all devices of a worker's mesh.
        validation_batch_size: sequences of a validation batch.
        validation_batches: validation batches of an evaluation, taken at even distances; 0: all, or for external models
            no evaluation.
        evaluation_batches: validation batches of an evaluation as they were counted; None if only workers can count.
        num_workers: number of workers that tt-train would have. It sizes the step, not the cluster.
        pipeline: stages that the model is split into; None for none. Each pipeline takes as many of those workers.
        gradient_accumulation_steps: micro-batches per step of each of those workers, or of each pipeline.
        evaluate_every: steps between evaluations; 0: only at the end, where there always is one.
        checkpoint_every: steps between checkpoints; 0: only at the end, where there always is one.
        checkpoint: schedule by time and retention of checkpoints.
        model: the model to train; `model.model_type` names its kind.
        code: code of the user's own model that the job brings along; None: workers have it installed, or need none.
        pretrained: checkpoint that the weights start from; None: they follow from the seed.
        start_from: checkpoint of an earlier job that the job starts from; None for none.
        device: mesh of each worker.
        optimizer: update rule.
        schedule: learning rate over the steps.
        clip_grad_norm: largest global norm of the mean gradient; None: no clipping.
        data: corpus and tokenizer; None for models that make their data from the seed.
        replacement: whether training windows (or samples) are drawn with replacement, or each once an epoch.
        sampling: sampling of text from the trained model.
        wire_dtype: types of gradients and weights between roles, and of activations between stages.
        exact: whether workers are refused whose fingerprint differs from the first one's.
        min_workers: number of workers below which the job waits, those with stages of a pipeline counted one by one;
            the result does not depend on it.
        max_workers: number of workers above which the job gets no more, counted like `min_workers`; None: as many as
            a step has micro-batches, or rows of stages.
        preemptible: whether jobs of a higher priority may take its workers while it runs.
        priority: place in the queue: jobs of a higher one come first, then older ones.
        on_non_finite: whether a step with NaN or infinity in its gradient is skipped, or stops the job.
        verify_fraction: share of the micro-batches whose gradients a second worker computes as well.
        on_faulty: after a worker was found faulty, go back to a checkpoint, or go on from the current step.
        tracking: trackers that its figures are written to.
        notify: name of the target that the aggregator tells what happens to the job; None for none.
    """

    name: PrintableName = "tt_train_nano_gpt"
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 5489
    steps: PositiveInt = 1000
    batch_size: BatchSize = 4
    validation_batch_size: BatchSize = 4
    validation_batches: Annotated[int, Field(ge=0, le=MOST_EVALUATION_BATCHES)] = 0
    evaluation_batches: Annotated[int, Field(ge=1, le=MOST_EVALUATION_BATCHES)] | None = None
    num_workers: MicroBatchCount = 1
    pipeline: PipelineConfig | None = None
    gradient_accumulation_steps: MicroBatchCount = 1
    evaluate_every: NonNegativeInt = 0
    checkpoint_every: NonNegativeInt = 500
    checkpoint: CheckpointConfig = CheckpointConfig()
    model: ModelConfig
    code: CodeConfig | None = None
    pretrained: PretrainedConfig | None = None
    start_from: StartConfig | None = None
    device: DeviceConfig = DeviceConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    clip_grad_norm: PositiveFloat | None = None
    data: DataConfig | None = None
    replacement: bool = True
    sampling: SamplingConfig = SamplingConfig()
    wire_dtype: WireConfigField = WireConfig()
    exact: bool = True
    min_workers: MicroBatchCount = 1
    max_workers: MicroBatchCount | None = None
    preemptible: bool = True
    priority: Priority = 0
    on_non_finite: Literal["skip", "stop"] = "skip"
    verify_fraction: Fraction = 0.0
    on_faulty: Literal["go_back", "go_on"] = "go_back"
    tracking: TrackingConfigField = TrackingConfig()
    notify: TargetName | None = Field(default=None, exclude_if=lambda name: name is None)

    @model_validator(mode="after")
    def _check_consistency(self) -> JobConfig:
        if self.pipeline is not None:
            check_pipeline(
                self.pipeline, self.model, self.device, self.num_workers, self.gradient_accumulation_steps
            )
        check_step_size(self.num_workers, self.stages, self.gradient_accumulation_steps, self.verify_fraction)
        check_mesh_size(self.device)
        check_model_size(self.model, self.vocabulary or 0)
        check_batches(self.model, self.batch_size, self.validation_batch_size)
        check_mesh_fit(self.model, self.device, self.batch_size, self.validation_batch_size)
        self._check_activations()
        if self.schedule.type in ("warmup_cosine", "speedrun") and self.schedule.min_lr > self.optimizer.lr:
            raise ValueError(
                f"scheduler_config.min_lr: {self.schedule.min_lr} given, expected at most the optimizer's lr, "
                f"{self.optimizer.lr}; lower it"
            )
        if self.verify_fraction and not self.exact:
            raise ValueError(
                f"training_config.verify_fraction: {self.verify_fraction} given with exact: false, expected 0, as "
                "workers that may differ in hardware or libraries are not faulty; remove one of the two"
            )
        if self.max_workers is not None and self.max_workers < self.min_workers:
            raise ValueError(
                f"training_config.max_workers: {self.max_workers} given with min_workers {self.min_workers}, expected "
                "at least as many; raise it, or lower min_workers"
            )
        if self.pretrained is not None and getattr(self.model, "vocab_size", None) is None:
            raise ValueError(
                f"transformer_config.model_path: {self.pretrained.path} given with a {self.model.model_type} without "
                "vocab_size, expected a gpt2 or llama with the checkpoint's vocab_size; remove it or set vocab_size"
            )
        if self.code is not None and not isinstance(self.model, CustomConfig):
            raise ValueError(
                f"--code: {printable_path(self.code.path)} given with model_type {self.model.model_type}, expected a "
                "model of your own, such as mixer:Mixer; leave it out, or correct transformer_config.model_type"
            )
        if self.start_from is not None:
            self._check_start(self.start_from)
        if (self.data is None) != isinstance(self.model, RegressionConfig | ExternalConfig):
            given = printable_path(self.data.files[0].path) if self.data else "none"
            raise ValueError(
                f"training_config.data_path: {given} given with model_type {self.model.model_type}, expected a corpus "
                "for language models and none for linear_regression, mlp and external; change one of the two"
            )
        return self

    def _check_activations(self) -> None:
        wire, mesh_dtype = self.wire_dtype, self.device.dtype
        if wire.activations is None:
            return
        given = f"training_config.wire_dtype.activations: {wire.activations} given"
        if self.stages == 1:
            raise ValueError(
                f"{given} without a pipeline, expected none, as only stages of a pipeline send activations; remove it, "
                "or write multihost_config.pipeline_parallel_config"
            )
        if self.verify_fraction and not wire.keeps_activations(mesh_dtype):
            raise ValueError(
                f"{given} with verify_fraction {self.verify_fraction} and device_config.dtype "
                f"{mesh_dtype or 'not given'}, expected the mesh's dtype or float32, as rounded activations depend on "
                "which stages share a worker; remove one of the two"
            )

    def _check_start(self, start: StartConfig) -> None:
        if self.pretrained is not None:
            raise ValueError(
                f"training_config.start_from: job {start.job} given together with transformer_config.model_path, "
                "expected one of them; remove one"
            )
        if start.first_step >= self.steps:
            raise ValueError(
                f"training_config.max_steps: {self.steps} given to continue job {start.job} at step "
                f"{start.first_step}, expected more; raise it (`--steps` of `tiermesh continue`)"
            )

    @property
    def stages(self) -> int:
        """Stages of a pipeline; 1 without one."""
        return self.pipeline.stages if self.pipeline else 1

    def count_holders(self, workers: int) -> int:
        """Return how many workers, or rows of workers that have all stages, compute micro-batches."""
        return max(1, workers // self.stages)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step, the leaves of its reduction tree."""
        return self.num_workers // self.stages * self.gradient_accumulation_steps

    @property
    def most_workers(self) -> int:
        """Number of workers above which the job gets no more."""
        if self.max_workers is not None:
            return self.max_workers
        return max(self.min_workers, self.micro_batches * self.stages)

    @property
    def sequences_per_step(self) -> int:
        """Sequences (or samples) of a step."""
        return self.micro_batches * self.batch_size

    @property
    def vocabulary(self) -> int | None:
        """Number of tokens that the model knows; 0 for a model without tokens, None if only workers know it."""
        if self.data is None:
            return 0
        stored = getattr(self.model, "vocab_size", None)
        return self.data.vocab_size if stored is None else int(stored)

    @property
    def parameters(self) -> ParameterCount:
        """Number of the model's parameters, or their maximum where only workers can count them."""
        model = self.model
        if isinstance(model, OwnConfig):
            return ParameterCount(model.max_parameters, "transformer_config.max_parameters")
        vocabulary = self.vocabulary
        if vocabulary is not None:
            return ParameterCount(sum(part.elements for part in model_parts(model, vocabulary)), "")
        largest = min(sum(part.elements for part in model_parts(model, MOST_WIDTH)), MAX_ELEMENTS)
        return ParameterCount(largest, f"a vocabulary of {MOST_WIDTH} tokens, as only workers can count them")

    def _plan_evaluation(self) -> EvaluationBatches:
        if isinstance(self.model, ExternalConfig):
            return EvaluationBatches(self.validation_batches, "")
        if self.evaluation_batches is not None:
            return EvaluationBatches(self.evaluation_batches, "")
        if self.validation_batches:
            return EvaluationBatches(self.validation_batches, "training_config.validation_batches")
        return EvaluationBatches()

    def check_checkers(self) -> None:
        """Check that a new job waits for a second worker if micro-batches are to be checked.

        Jobs that earlier versions have stored may have one worker, which checks itself.

        Raises:
            Refused: `min_workers` is 1.
        """
        if self.verify_fraction and self.min_workers < MIN_CHECKED_WORKERS:
            raise Refused(
                f"training_config.min_workers: {self.min_workers} given with verify_fraction {self.verify_fraction}, "
                f"expected at least {MIN_CHECKED_WORKERS}, as another worker checks each one; raise it, or remove "
                "verify_fraction"
            )

    def plan(self) -> JobPlan:
        """Return what the cores need to know of this job: the shape of its steps, nothing of its model."""
        return JobPlan(
            steps=self.steps,
            micro_batches=self.micro_batches,
            evaluate_every=self.evaluate_every,
            checkpoint_every=self.checkpoint_every,
            checkpoint_seconds=60 * self.checkpoint.every_minutes,
            stops_without_checkpoint=self.checkpoint.on_error == "stop",
            exact=self.exact,
            min_workers=self.min_workers,
            max_workers=self.most_workers,
            preemptible=self.preemptible,
            priority=self.priority,
            wire=WireTypes(_DTYPES[self.wire_dtype.gradients], _DTYPES[self.wire_dtype.weights]),
            on_non_finite=self.on_non_finite,
            verify_fraction=self.verify_fraction,
            on_faulty=self.on_faulty,
            batch_size=self.batch_size,
            validation_batch_size=self.validation_batch_size,
            stages=self.stages,
            pipelines=self.num_workers // self.stages,
            parameters=self.parameters,
            evaluation_batches=self._plan_evaluation(),
            learning_rate=self.optimizer.lr,
            schedule=Schedule(**self.schedule.model_dump()),
            clip_grad_norm=self.clip_grad_norm,
            features=needed_features(self.model_dump(mode="json")),
            external=isinstance(self.model, ExternalConfig),
        )

    def to_json(self) -> str:
        """Return the job as canonical JSON (equal jobs give equal text), which `submit` sends and checkpoints keep."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> JobConfig:
        """Return the job that `to_json` wrote.

        Raises:
            Refused: the text is too long, or a field is missing, unknown or out of range; the first one is named.
        """
        check_spec_size(text)
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise validation_refused(error, "", cls) from None


def check_spec_size(text: str | bytes) -> None:
    """Check the length of a job as JSON.

    Raises:
        OverCap: it is too long.
    """
    length = len(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))
    if length > MOST_SPEC_BYTES:
        raise OverCap(
            Cap.SPEC_BYTES,
            f"job: {length} bytes as JSON, expected at most {MOST_SPEC_BYTES}; shorten the lists and texts in "
            "transformer_config, or have the model read them from a file",
        )
