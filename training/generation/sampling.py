"""Draws the next token from a model's logits."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from services.config.job_parts import SamplingConfig


def choose(
    logits: npt.NDArray[np.float32], seen: Collection[int], sampling: SamplingConfig, uniform: float
) -> int:
    """Return the next token, an id below the size of the vocabulary.

    The settings apply in tt-train's order: repetition penalty, temperature, top-k, top-p.

    Args:
        logits: [vocabulary].
        seen: ids that the text already has.
        sampling: settings of the draw.
        uniform: a random number in [0, 1), which alone determines the draw.
    """
    scores = logits.astype(np.float64)
    if sampling.repetition_penalty != 1 and seen:
        ids = np.fromiter(seen, np.int64, len(seen))
        penalty = sampling.repetition_penalty
        scores[ids] = np.where(scores[ids] > 0, scores[ids] / penalty, scores[ids] * penalty)
    if sampling.temperature == 0:
        return int(np.argmax(scores))
    scores /= sampling.temperature
    # Likeliest first; the sort is stable, so equal scores stay in the order of their ids.
    order = np.argsort(-scores, kind="stable")
    if sampling.top_k:
        order = order[: sampling.top_k]
    probabilities = np.exp(scores[order] - scores[order[0]])
    probabilities /= probabilities.sum()
    cumulative = np.cumsum(probabilities)
    if sampling.top_p < 1:
        kept = int(np.searchsorted(cumulative, sampling.top_p)) + 1
        cumulative = cumulative[:kept]
    place = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return int(order[min(place, cumulative.size - 1)])
