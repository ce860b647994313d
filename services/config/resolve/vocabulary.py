"""Vocabulary of a job: that of its tokenizer, or for token ids that of its model."""

from __future__ import annotations

from services.config.job_parts import PretrainedConfig
from services.config.models import CustomConfig, TransformerConfig
from services.config.parameters import count_parameters
from services.config.resolve.tokenizer import FoundTokenizer
from services.config.sections import TrainingSection
from services.errors import Refused
from services.printable import printable_path

SIZE_FIELD = "transformer_config.vocab_size"
_RULE_FIELD = "training_config.vocabulary"


def text_vocabulary(
    training: TrainingSection,
    pretrained: PretrainedConfig | None,
    model: TransformerConfig,
    tokenizer: FoundTokenizer,
    notices: list[str],
) -> TransformerConfig:
    """Return the model with the vocabulary of a corpus with texts, which is the tokenizer's.

    Its `vocab_size` is None for as many tokens as the tokenizer has. A `vocab_size` that is larger is kept if
    `training_config.vocabulary` says so. A checkpoint keeps its own.

    Args:
        training: the `training_config` section.
        pretrained: checkpoint that the job starts from.
        model: the model, with the `vocab_size` that the job gives it.
        tokenizer: the corpus's tokenizer.
        notices: list to which a line is appended if the job gives another size than the tokenizer has.

    Raises:
        Refused: the tokenizer has more tokens than the checkpoint.
    """
    given, tokens = vocab_size_of(model), tokenizer.tokens
    if pretrained is not None:
        if given is not None and tokens is not None and tokens > given:
            raise Refused(
                f"training_config.tokenizer_path: {printable_path(tokenizer.path)} has {tokens} tokens, expected at "
                f"most the {given} of the checkpoint; give the checkpoint's own tokenizer"
            )
        return model
    if isinstance(model, CustomConfig):
        return model
    by_config = training.vocabulary == "config"
    if given is None:
        if by_config:
            notices.append(f"{_RULE_FIELD}: config is without effect: the model has no vocab_size")
        return model
    if by_config and (tokens is None or given >= tokens):
        return model
    if tokens is None:
        notices.append(f"{SIZE_FIELD}: {given} is without effect: the vocabulary has the tokenizer's size")
    elif given != tokens:
        with_given, with_tokens = (count_parameters(model, size) for size in (given, tokens))
        notices.append(
            f"{SIZE_FIELD}: {given} given ({with_given:,} parameters), the tokenizer has {tokens} tokens, so the model "
            f"has {tokens} ({with_tokens:,} parameters)"
            + ("; training_config.vocabulary: config takes the larger one" if given > tokens else "")
        )
    return model.model_copy(update={"vocab_size": None})


def token_vocabulary(model: TransformerConfig, made_with: int | None, tokenizer: FoundTokenizer) -> int:
    """Return the number of tokens of a vocabulary of token ids.

    It is the model's `vocab_size`, else that of the tokenizer that made the ids, else that of the job's tokenizer.

    Args:
        model: the model, with the `vocab_size` that the job or a checkpoint gives it.
        made_with: number of tokens of the tokenizer that made the ids, as their files say.
        tokenizer: tokenizer of the job.

    Raises:
        Refused: nothing says how large it is.
    """
    size = vocab_size_of(model) or made_with or tokenizer.tokens
    if size is None:
        raise Refused(
            f"{SIZE_FIELD}: missing, expected the number of tokens of the vocabulary, which these token ids don't say; "
            "write for example vocab_size: 50257"
        )
    return size


def vocab_size_of(model: TransformerConfig) -> int | None:
    """Return the `vocab_size` that a model is given; a user's own model may have one among its options."""
    size = model.options.get("vocab_size") if isinstance(model, CustomConfig) else model.vocab_size
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None
