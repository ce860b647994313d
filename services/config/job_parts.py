"""The parts of a job: what a worker, an aggregator or an optimizer reads of it, each a frozen record.

The values here are resolved: defaults filled in, both spellings of tt-train's files made one, paths absolute.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from services.config.field_types import (
    ConfigRecord,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
    Sha256,
)
from services.config.refusals import format_value


class OptimizerConfig(ConfigRecord):
    """The update rule, with the settings of all rules; a rule reads its own.

    Attributes:
        type: `adamw` reads beta1, beta2, epsilon; `sgd` reads momentum, dampening, nesterov.
        lr: learning rate before the schedule's factor.
        weight_decay: decoupled for adamw, added to the gradient for sgd (as torch has them).
        weight_decay_on: every parameter (tt-train) or matrices only, embedding tables among them (nanoGPT).
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: added to the root of the second moment.
        momentum: decay of sgd's velocity; 0 for none.
        dampening: share of the gradient that does not enter the velocity.
        nesterov: look one velocity ahead; needs momentum above 0 and dampening 0.
    """

    type: Literal["adamw", "sgd"] = "adamw"
    lr: NonNegativeFloat = 3e-4
    weight_decay: NonNegativeFloat = 0.01
    weight_decay_on: Literal["all", "matrices"] = "all"
    beta1: Probability = 0.9
    beta2: Probability = 0.999
    epsilon: PositiveFloat = 1e-8
    momentum: Probability = 0.0
    dampening: Fraction = 0.0
    nesterov: bool = False

    @model_validator(mode="after")
    def _nesterov_has_a_momentum(self) -> OptimizerConfig:
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError(
                f"training_config.optimizer.nesterov: true given with momentum {self.momentum} and dampening "
                f"{self.dampening}, expected momentum above 0 and dampening 0; write for example momentum: 0.9"
            )
        return self


class ScheduleConfig(ConfigRecord):
    """The learning rate over the steps.

    Attributes:
        type: identity: constant. warmup_linear: tt-train's, 0 → lr over the warm-up, then lr → 0.01 lr.
            warmup_cosine: nanoGPT's, 0 → lr over the warm-up, then along a half cosine lr → min_lr.
        total_steps: step at which the decay ends.
        warmup_steps: steps of the warm-up, fewer than `total_steps`.
        min_lr: learning rate (not a factor) at the end of warmup_cosine.
    """

    type: Literal["identity", "warmup_linear", "warmup_cosine"] = "identity"
    total_steps: PositiveInt = 1000
    warmup_steps: NonNegativeInt = 0
    min_lr: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _warm_up_ends(self) -> ScheduleConfig:
        if self.type != "identity" and self.warmup_steps >= self.total_steps:
            raise ValueError(
                f"scheduler_config.warmup_steps: {self.warmup_steps} given, expected fewer than the "
                f"{self.total_steps} steps of the schedule; lower it or set training_config.total_steps"
            )
        return self


class DataConfig(ConfigRecord):
    """Corpus and tokenizer of a language model; linear regression makes its data from the seed and has none.

    Attributes:
        path: absolute path of a UTF-8 text, or `builtin:python-reference`.
        sha256: of the file's bytes, or of the built-in text as UTF-8; workers hold theirs against it.
        tokenizer_type: `char` (made from the corpus) or `bpe`.
        tokenizer_path: absolute path of a `tokenizer.json`; None for `char`.
        tokenizer_sha256: of that file's bytes.
    """

    path: Annotated[str, Field(min_length=1)]
    sha256: Sha256
    tokenizer_type: Literal["char", "bpe"] = "char"
    tokenizer_path: str | None = None
    tokenizer_sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _a_bpe_tokenizer_has_a_file(self) -> DataConfig:
        has_file = self.tokenizer_path is not None and self.tokenizer_sha256 is not None
        if has_file != (self.tokenizer_type == "bpe"):
            raise ValueError(
                f"training_config.tokenizer_path: {self.tokenizer_path or 'none'} given with tokenizer_type "
                f"{self.tokenizer_type}, expected a tokenizer.json for bpe and none for char; "
                "set tokenizer_path or tokenizer_type"
            )
        return self


class PretrainedConfig(ConfigRecord):
    """The checkpoint whose weights a job starts from, in Hugging Face's format, which ours have too.

    Attributes:
        path: absolute path of its folder.
        files: sha256 of each file that is read of it, by name: config and weights.
    """

    path: Annotated[str, Field(min_length=1)]
    files: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,200}$")], Sha256]


WIRE_TYPE_NAMES = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
}
"""What people write for a type on the wire, and its name."""


def _spelled_out(value: Any) -> Any:
    return WIRE_TYPE_NAMES.get(value, value) if isinstance(value, str) else value


WireType = Annotated[Literal["float32", "bfloat16", "float16"], BeforeValidator(_spelled_out)]
"""How elements travel between roles."""


class WireConfig(ConfigRecord):
    """How tensors travel between roles; the optimizer's master weights are float32 whatever it says.

    Attributes:
        gradients: of a worker's sums, on their way to the aggregator.
        weights: on their way from the optimizer to the workers. Initial weights, and the sum that an aggregator
            sends to an optimizer, are always float32.
    """

    gradients: WireType = "float32"
    weights: WireType = "float32"


def _of_both(value: Any) -> Any:
    """One word is meant for both directions."""
    if isinstance(value, str) and value in WIRE_TYPE_NAMES:
        return {"gradients": value, "weights": value}
    if not isinstance(value, dict | WireConfig):
        raise ValueError(
            f"training_config.wire_dtype: {format_value(value)} given, expected float32, bfloat16, float16 or one "
            "for each direction; write for example wire_dtype: {gradients: bfloat16, weights: bfloat16}"
        )
    return value


WireConfigField = Annotated[WireConfig, BeforeValidator(_of_both)]
"""`WireConfig` as people write it: a mapping, or one word for both directions."""


class CheckpointConfig(ConfigRecord):
    """What becomes of a job's checkpoints.

    Attributes:
        every_minutes: after a checkpoint the next is due, if it isn't by steps; 0: by steps alone.
        keep_last: so many newest ones are kept; 0: all.
        keep_every: beside those, of each so many steps the first one; 0: none. Step 0 always is.
        on_error: whether the job goes on where one can't be written. Without its first and last one no job does.
    """

    every_minutes: NonNegativeFloat = 0.0
    keep_last: NonNegativeInt = 0
    keep_every: NonNegativeInt = 0
    on_error: Literal["continue", "stop"] = "continue"

    @model_validator(mode="after")
    def _what_is_kept_beside_the_last(self) -> CheckpointConfig:
        if self.keep_every and not self.keep_last:
            raise ValueError(
                f"training_config.checkpoint.keep_every: {self.keep_every} given with keep_last 0, which keeps all, "
                "expected keep_last of at least 1; write for example keep_last: 3, or remove keep_every"
            )
        return self


class SamplingConfig(ConfigRecord):
    """How text is drawn from the trained model, tt-train's `eval_config`, applied in this order.

    Attributes:
        repetition_penalty: logits of tokens seen are divided by it (multiplied if negative); 1 for none.
        temperature: logits are divided by it; 0 takes the likeliest token.
        top_k: only that many likeliest tokens; 0 for all.
        top_p: only the likeliest tokens that make up this probability; 1 for all.
    """

    repetition_penalty: PositiveFloat = 1.0
    temperature: NonNegativeFloat = 1.0
    top_k: NonNegativeInt = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
