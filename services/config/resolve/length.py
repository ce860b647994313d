"""Length of a job: steps or epochs, whichever ends first."""

from __future__ import annotations

from services.config.corpus import read_text, read_tokenizer
from services.config.job_parts import CorpusFile, DataConfig
from services.config.models import RegressionConfig
from services.config.resolve.data import ResolvedData
from services.config.sections import TrainingSection
from services.config.windows import count_training_tokens, count_training_windows
from services.errors import Refused
from services.printable import counted, one_line, printable_path
from services.protocol.plan import MOST_EVALUATION_BATCHES

_FIELD = "training_config.num_epochs"


def counts_epochs(training: TrainingSection, multihost: bool, notices: list[str]) -> bool:
    """Return whether a job goes through its corpus in epochs, in each of which every window is drawn once.

    A job that gives `num_epochs` does. tt-train reads it on a single host alone, so a job with an enabled
    `multihost_config` must ask for it: `epochs: strict`.

    Args:
        training: the `training_config` section.
        multihost: whether `multihost_config` is enabled.
        notices: list to which a line is appended if `num_epochs` has no effect.
    """
    if training.epochs == "strict":
        return True
    if training.num_epochs is None:
        return False
    if multihost:
        notices.append(
            f"{_FIELD}: {training.num_epochs} is without effect with multihost_config, as in tt-train: max_steps "
            "alone ends the job; training_config.epochs: strict counts epochs"
        )
    return not multihost


def max_steps_of(training: TrainingSection) -> int:
    """Return the largest number of steps, in either spelling.

    Raises:
        Refused: the spellings differ.
    """
    given = training.model_fields_set & {"steps", "max_steps"}
    if len(given) == 2 and training.steps != training.max_steps:
        raise Refused(
            f"training_config.steps: {training.steps} given together with max_steps: {training.max_steps}, "
            "expected one of them; remove steps"
        )
    return training.steps or training.max_steps


def steps_of_epochs(
    training: TrainingSection, data: ResolvedData, sequences_per_step: int, notices: list[str]
) -> int:
    """Return the number of steps of a job that counts epochs: those of `num_epochs`, at most `max_steps`.

    The last step is whole: it begins another epoch if the windows of the last one don't fill it.

    Args:
        training: the `training_config` section.
        data: the job's data.
        sequences_per_step: windows (or samples) of a step.
        notices: list to which a line is appended if the epochs end before `max_steps`, or can't be counted.
    """
    most = max_steps_of(training)
    if training.num_epochs is None:
        return most
    try:
        windows = _count_windows(data)
    except Refused as error:  # the worker refuses the job for it, as it does without epochs
        notices.append(f"{_FIELD}: {training.num_epochs} is not counted: {one_line(str(error), 200)}")
        return most
    steps = -(-training.num_epochs * windows // sequences_per_step)
    if steps >= most:
        return most
    notices.append(
        f"{_FIELD}: {training.num_epochs} of {windows:,} windows end the job after {counted(steps, 'step')}, before "
        f"its {most} max_steps"
    )
    return steps


def check_evaluation(training: TrainingSection, data: ResolvedData, batch_size: int) -> None:
    """Check that the held-out batches of an evaluation are not too many, as far as their number is known.

    Args:
        training: the `training_config` section.
        data: the job's data.
        batch_size: windows of a held-out batch.

    Raises:
        Refused: there are too many, and the job does not limit them.
    """
    if training.validation_batches or data.config is None or isinstance(data.model, RegressionConfig):
        return
    batches = _count_held_out_batches(data, batch_size)
    if batches > MOST_EVALUATION_BATCHES:
        held_out = sum(_count_held_out(length) for length in data.lengths if length is not None)
        raise Refused(
            f"training_config.validation_batches: not given with {held_out} held-out tokens, which make {batches} "
            f"batches, expected at most {MOST_EVALUATION_BATCHES}; write for example validation_batches: 1000"
        )


def known_evaluation_batches(training: TrainingSection, data: ResolvedData, batch_size: int) -> int | None:
    """Return the number of batches of an evaluation; None if only a tokenizer can count a text's tokens.

    Args:
        training: the `training_config` section.
        data: the job's data.
        batch_size: windows (or samples) of a held-out batch.
    """
    if None in data.lengths:
        return None
    held_out = _count_held_out_batches(data, batch_size)
    return min(training.validation_batches or held_out, held_out)


def _count_held_out_batches(data: ResolvedData, batch_size: int) -> int:
    """Return the number of held-out batches of all files whose lengths are known, or of samples."""
    held_out = [_count_held_out(length) for length in data.lengths if length is not None]
    if isinstance(data.model, RegressionConfig):
        return sum(-(-each // batch_size) for each in held_out)
    tokens = batch_size * data.model.max_sequence_length
    return sum(-(-(each - 1) // tokens) for each in held_out)


def _count_held_out(length: int) -> int:
    return length - count_training_tokens(length)


def known_training_windows(data: ResolvedData) -> int | None:
    """Return the number of training windows (or samples) of all files; None if only a tokenizer can count a text's."""
    return None if None in data.lengths else _count_windows(data)


def _count_windows(data: ResolvedData) -> int:
    """Return the number of training windows of all files, or of training samples.

    Raises:
        Refused: a text is too short, or its tokenizer can't be read.
    """
    if data.config is None or isinstance(data.model, RegressionConfig):
        return sum(count_training_tokens(length or 0) for length in data.lengths)
    window, total = data.model.max_sequence_length, 0
    for file, length in zip(data.config.files, data.lengths, strict=True):
        tokens = _count_tokens(file, data.config) if length is None else length
        place = f"training_config.data_path: {printable_path(file.path)}"
        total += count_training_windows(tokens, window, place)
    return total


def _count_tokens(file: CorpusFile, data: DataConfig) -> int:
    """Return the number of tokens of a text, tokenized as workers do it."""
    # Imported late: only jobs that count epochs load the tokenizers' library.
    from services.config.tokenizer_file import parse_tokenizer

    tokenizer = parse_tokenizer(read_tokenizer(data), data.tokenizer_path or "")
    return len(tokenizer.encode(read_text(file), add_special_tokens=False))
