"""The parts of a job's config, one frozen record each.

Their values are resolved: defaults are filled in, tt-train's two spellings are unified, paths are absolute.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from services.config.field_types import (
    ConfigRecord,
    Fraction,
    JobId,
    NonNegativeFloat,
    NonNegativeInt,
    PathText,
    PositiveFloat,
    PositiveInt,
    Probability,
    Sha256,
    Width,
)
from services.config.refusals import format_value
from services.printable import printable_path


class OptimizerConfig(ConfigRecord):
    """Update rule, with the settings of all rules; each rule reads its own.

    Attributes:
        type: `adamw` (reads beta1, beta2, epsilon, amsgrad), `sgd` (reads momentum, dampening, nesterov), or `noop`,
            which leaves the weights as they are.
        lr: learning rate before the schedule's factor.
        weight_decay: decoupled weight decay for adamw; L2 term of the gradient for sgd, as in torch.
        weight_decay_on: `all` parameters (tt-train), or `matrices` only, embedding tables included (nanoGPT).
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: term added to the root of the second moment.
        amsgrad: use of the largest second moment so far; one more array of state.
        momentum: decay of sgd's velocity; 0 for none.
        dampening: share of the gradient that does not enter the velocity.
        nesterov: use of Nesterov momentum; needs momentum above 0 and dampening 0.
    """

    type: Literal["adamw", "sgd", "noop"] = "adamw"
    lr: NonNegativeFloat = 3e-4
    weight_decay: NonNegativeFloat = 0.01
    weight_decay_on: Literal["all", "matrices"] = "all"
    beta1: Probability = 0.9
    beta2: Probability = 0.999
    epsilon: PositiveFloat = 1e-8
    amsgrad: bool = False
    momentum: Probability = 0.0
    dampening: Fraction = 0.0
    nesterov: bool = False

    @model_validator(mode="after")
    def _check_nesterov(self) -> OptimizerConfig:
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError(
                f"training_config.optimizer.nesterov: true given with momentum {self.momentum} and dampening "
                f"{self.dampening}, expected momentum above 0 and dampening 0; write for example momentum: 0.9"
            )
        return self


ScheduleType = Literal["identity", "warmup_linear", "warmup_cosine", "speedrun", "step"]
"""Type of a learning rate schedule."""


class ScheduleConfig(ConfigRecord):
    """Learning rate, and beta1 of AdamW, over the steps.

    Attributes:
        type: `identity` is constant. `warmup_linear` is tt-train's: 0 → lr over the warm-up, then lr → 0.01 lr.
            `warmup_cosine` is nanoGPT's: 0 → lr over the warm-up, then a half cosine lr → min_lr. `speedrun` is
            tt-train's: 0 → lr over the warm-up, then lr, then lr → min_lr. `step` multiplies the rate by `gamma`
            every `step_size` steps.
        total_steps: step at which the decay ends.
        warmup_steps: steps of the warm-up, fewer than `total_steps` unless the type is `speedrun`.
        hold_steps: steps between warm-up and decay of speedrun.
        min_lr: learning rate (not a factor) at the end of warmup_cosine and speedrun.
        step_size: steps with the same rate, of `step`.
        gamma: factor from one rate to the next, of `step`.
        beta1_warmup_steps: steps over which speedrun moves beta1; 0: beta1 is the optimizer's.
        beta1_start: beta1 of the first step.
        beta1_end: beta1 after `beta1_warmup_steps` steps.
    """

    type: ScheduleType = "identity"
    total_steps: PositiveInt = 1000
    warmup_steps: NonNegativeInt = 0
    hold_steps: NonNegativeInt = 0
    min_lr: NonNegativeFloat = 0.0
    step_size: PositiveInt = 1
    gamma: Fraction = 1.0
    beta1_warmup_steps: NonNegativeInt = 0
    beta1_start: Probability = 0.0
    beta1_end: Probability = 0.0

    @model_validator(mode="after")
    def _check_warmup(self) -> ScheduleConfig:
        if self.type in ("warmup_linear", "warmup_cosine") and self.warmup_steps >= self.total_steps:
            raise ValueError(
                f"scheduler_config.warmup_steps: {self.warmup_steps} given, expected fewer than the "
                f"{self.total_steps} steps of the schedule; lower it or set training_config.total_steps"
            )
        return self


MOST_CORPUS_FILES = 512
"""Maximum number of files of a corpus; their records fill most of the longest job."""

TokenizerType = Literal["char", "bpe", "none"]
"""Kind of a job's tokenizer: made from the texts, read from a `tokenizer.json`, or none, for token ids."""


class CorpusFile(ConfigRecord):
    """One file of a corpus.

    Attributes:
        path: absolute path, or `builtin:python-reference`.
        kind: `text` in UTF-8, or token ids (`tokens`).
        sha256: sha256 of the text's bytes, or of the binary file of token ids. YAML and CSV files of token ids stand
            for the binary that they are converted to.
        identity: sha256 that stands for the content of a file of token ids (`services/corpora`); None for a text.
        weight: share of the training windows drawn from this file, relative to the other files' weights. None for
            each file: every window of the corpus is as likely as any other.
    """

    path: Annotated[PathText, Field(min_length=1)]
    kind: Literal["text", "tokens"] = "text"
    sha256: Sha256
    identity: Sha256 | None = None
    weight: PositiveFloat | None = None

    @model_validator(mode="after")
    def _check_identity(self) -> CorpusFile:
        if (self.identity is not None) != (self.kind == "tokens"):
            raise ValueError(
                f"training_config.data_path: {printable_path(self.path)} is {self.kind} "
                f"{'without' if self.identity is None else 'with'} an identity, expected one for token ids alone; "
                "submit the job again"
            )
        return self


class DataConfig(ConfigRecord):
    """Corpus and tokenizer of a language model. Regression models make their data from the seed and have none.

    Attributes:
        files: files of the corpus. The last tenth of each is held out.
        tokenizer_type: `char` (made from the texts), `bpe`, or `none` for a corpus of token ids without a tokenizer.
        tokenizer_path: absolute path of a `tokenizer.json`; None unless the type is `bpe`.
        tokenizer_sha256: sha256 of that file's bytes, which workers verify.
        vocab_size: number of tokens of the tokenizer, or of the token ids' vocabulary; None if only workers know it.
    """

    files: Annotated[tuple[CorpusFile, ...], Field(min_length=1, max_length=MOST_CORPUS_FILES)]
    tokenizer_type: TokenizerType = "char"
    tokenizer_path: PathText | None = None
    tokenizer_sha256: Sha256 | None = None
    vocab_size: Width | None = None

    @property
    def weights(self) -> tuple[float, ...] | None:
        """Weights of the files, or None if they have none."""
        given = tuple(file.weight for file in self.files if file.weight is not None)
        return given or None

    @model_validator(mode="after")
    def _check_files(self) -> DataConfig:
        weighted = [file.weight is not None for file in self.files]
        if any(weighted) and not all(weighted):
            raise ValueError(
                f"training_config.data_path[{weighted.index(False)}].weight: missing, expected a weight for each file "
                "or for none; add it, or remove the others"
            )
        for kind, tokenizer, fix in (
            ("tokens", "char", "tokenizer_type: bpe with the tokenizer that made the token ids"),
            ("text", "none", "tokenizer_type: char or bpe"),
        ):
            file = next((file for file in self.files if file.kind == kind), None)
            if file is not None and self.tokenizer_type == tokenizer:
                raise ValueError(
                    f"training_config.tokenizer_type: {tokenizer} given with {kind} in {printable_path(file.path)}, "
                    f"expected another type; write {fix}"
                )
        return self

    @model_validator(mode="after")
    def _check_tokenizer_file(self) -> DataConfig:
        has_file = self.tokenizer_path is not None and self.tokenizer_sha256 is not None
        if has_file != (self.tokenizer_type == "bpe"):
            raise ValueError(
                f"training_config.tokenizer_path: {self.tokenizer_path or 'none'} given with tokenizer_type "
                f"{self.tokenizer_type}, expected a tokenizer.json for bpe and none for others; "
                "set tokenizer_path or tokenizer_type"
            )
        return self


FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,200}$", max_length=201)]
"""Name of a file in a checkpoint's folder."""


class PretrainedConfig(ConfigRecord):
    """Checkpoint whose weights a job starts from, in Hugging Face's format (Tiermesh's checkpoints have it too).

    Attributes:
        path: absolute path of the checkpoint's folder.
        files: sha256 by file name, of the config and the weights.
    """

    path: Annotated[PathText, Field(min_length=1)]
    files: Annotated[dict[FileName, Sha256], Field(max_length=1000)]


class CodeConfig(ConfigRecord):
    """Code of a job's own model that was sent with it: one file, an archive (`services/files/code_archive.py`).

    Attributes:
        path: absolute path of the folder on the host that the job was submitted from; on a worker, of the archive.
        sha256: sha256 of the archive.
    """

    path: Annotated[PathText, Field(min_length=1)]
    sha256: Sha256


def _newest_is_none(value: Any) -> Any:
    return None if value == "newest" else value


class StartConfig(ConfigRecord):
    """Checkpoint of an earlier job that a job starts from. The optimizer has it on disk.

    Attributes:
        job: id of the earlier job, which has ended.
        step: step of its checkpoint; None, or `newest`: the newest. The aggregator fills it in at submission.
        model_sha256: sha256 of that checkpoint's `model.safetensors`, filled in together with the step.
        optimizer: whether the state of the update rule is taken too; else it begins with zeros.
        step_counter: `restart` calls the step with these weights 0; `continue` counts on from the checkpoint's step,
            so that data and schedule go on where the earlier job ended.
        change_split: whether a job that continues may have other stages than the earlier one.
    """

    job: JobId
    step: Annotated[NonNegativeInt | None, BeforeValidator(_newest_is_none)] = None
    model_sha256: Sha256 | None = None
    optimizer: bool = True
    step_counter: Literal["restart", "continue"] = "restart"
    change_split: bool = False

    @property
    def first_step(self) -> int:
        """Step that the job begins at; 0 as long as the step to continue at is not known."""
        return self.step or 0 if self.step_counter == "continue" else 0


WIRE_TYPE_NAMES = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
}
"""Name of a wire type by the way users write it."""


def _full_type_name(value: Any) -> Any:
    return WIRE_TYPE_NAMES.get(value, value) if isinstance(value, str) else value


WireType = Annotated[Literal["float32", "bfloat16", "float16"], BeforeValidator(_full_type_name)]
"""Type of tensor elements on the wire."""


class WireConfig(ConfigRecord):
    """Types in which tensors travel between roles. The optimizer's master weights are always float32.

    Attributes:
        gradients: type of a worker's gradient sums on their way to the aggregator. The sum that an aggregator sends to
            an optimizer is always float32.
        weights: type of weights on their way from the optimizer to the workers. Initial weights are always float32.
        activations: type of all arrays between the workers of a pipeline: activations, their gradients, and parts of a
            tied embedding's gradient; None: the mesh's dtype.
    """

    gradients: WireType = "float32"
    weights: WireType = "float32"
    activations: WireType | None = None

    def keeps_activations(self, mesh_dtype: Literal["bfloat16", "float32"] | None) -> bool:
        """Return whether activations keep their bits on the wire.

        Args:
            mesh_dtype: dtype of the workers' meshes; None if it is not known.
        """
        return self.activations in (None, "float32", mesh_dtype)


def _expand_single_type(value: Any) -> Any:
    """Return the mapping that one type for both directions stands for."""
    if isinstance(value, str) and value in WIRE_TYPE_NAMES:
        return {"gradients": value, "weights": value}
    if not isinstance(value, dict | WireConfig):
        raise ValueError(
            f"training_config.wire_dtype: {format_value(value)} given, expected float32, bfloat16, float16 or one "
            "for each direction; write for example wire_dtype: {gradients: bfloat16, weights: bfloat16}"
        )
    return value


WireConfigField = Annotated[WireConfig, BeforeValidator(_expand_single_type)]
"""`WireConfig` as users write it: a mapping, or one type for both directions."""


class CheckpointConfig(ConfigRecord):
    """Schedule and retention of a job's checkpoints.

    Attributes:
        every_minutes: longest time between two checkpoints, if the steps don't ask for one earlier; 0: no limit.
        keep_last: number of newest checkpoints to keep; 0: all.
        keep_every: besides those, the first checkpoint of each `keep_every` steps is kept; 0: none. The first
            one is always kept.
        on_error: whether the job continues or stops when a checkpoint can't be written. The first and the last
            checkpoint are always required.
    """

    every_minutes: NonNegativeFloat = 0.0
    keep_last: NonNegativeInt = 0
    keep_every: NonNegativeInt = 0
    on_error: Literal["continue", "stop"] = "continue"

    @model_validator(mode="after")
    def _check_retention(self) -> CheckpointConfig:
        if self.keep_every and not self.keep_last:
            raise ValueError(
                f"training_config.checkpoint.keep_every: {self.keep_every} given with keep_last 0, which keeps all, "
                "expected keep_last of at least 1; write for example keep_last: 3, or remove keep_every"
            )
        return self


TrackerName = Literal["csv", "jsonl", "tensorboard", "wandb", "mlflow"]
"""Name of a tracker (services/tracking)."""


class TrackingConfig(ConfigRecord):
    """Trackers that a job's figures are written to. There are no paths, addresses or keys: those are the writer's own.

    Attributes:
        trackers: names of the trackers, each once.
        written_by: who writes them: the aggregator, or the command that submits the job and follows it.
    """

    trackers: Annotated[tuple[TrackerName, ...], Field(max_length=5)] = ()
    written_by: Literal["aggregator", "submitter"] = "aggregator"


def _expand_trackers(value: Any) -> Any:
    """Return the mapping that a tracker, or a list of them, stands for; its list as a tuple without repetitions."""
    if isinstance(value, TrackingConfig):
        return value
    if isinstance(value, str | list | tuple):
        value = {"trackers": value}
    if not isinstance(value, dict):
        raise ValueError(
            f"training_config.tracking: {format_value(value)} given, expected a list of csv, jsonl, tensorboard, wandb "
            "and mlflow; write for example tracking: [csv, tensorboard]"
        )
    names = value.get("trackers", ())
    if isinstance(names, str):
        names = (names,)
    if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
        names = tuple(dict.fromkeys(names))
    return {**value, "trackers": names}


TrackingConfigField = Annotated[TrackingConfig, BeforeValidator(_expand_trackers)]
"""`TrackingConfig` as users write it: a mapping, a list of trackers, or one."""


class SamplingConfig(ConfigRecord):
    """Sampling of text from the trained model (tt-train's `eval_config`), applied in this order.

    Attributes:
        repetition_penalty: divisor of the logits of tokens seen before (factor if they are negative); 1 for none.
        temperature: divisor of the logits; 0 takes the likeliest token.
        top_k: number of likeliest tokens to draw from; 0 for all.
        top_p: probability that the likeliest tokens to draw from make up; 1 for all.
    """

    repetition_penalty: PositiveFloat = 1.0
    temperature: NonNegativeFloat = 1.0
    top_k: NonNegativeInt = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
