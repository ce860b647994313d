"""Division of a file's tokens into training windows and a held-out part."""

from __future__ import annotations

from services.errors import Refused

TRAINING_SHARE = 0.9
"""Share of the tokens (or samples), from the start, that is trained on; the rest is held out."""


def count_training_tokens(tokens: int) -> int:
    """Return how many of so many tokens (or samples) are trained on."""
    return int(TRAINING_SHARE * tokens)


def count_training_windows(tokens: int, window: int, place: str, unit: str = "tokens") -> int:
    """Return the number of training windows of a file. A window starts at any token.

    Args:
        tokens: number of tokens of the file.
        window: tokens of a window.
        place: dotted field and file, as errors begin.
        unit: what the tokens are called in errors.

    Raises:
        Refused: the file is too short for one training window and one held-out prediction.
    """
    training = count_training_tokens(tokens)
    if training <= window or tokens - training < 2:
        raise Refused(
            f"{place} has {tokens} {unit}, expected at least {-(-(window + 1) * 10 // 9)} for windows of {window}; "
            "give a longer file or a smaller transformer_config.max_sequence_length"
        )
    return training - window
