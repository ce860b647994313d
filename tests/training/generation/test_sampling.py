"""Drawing a token: each setting works as tt-train's does, in its order."""

from __future__ import annotations

import numpy as np
import pytest

from services.config.job_parts import SamplingConfig
from training.generation.sampling import choose

LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))


def measure_shares(sampling: SamplingConfig, seen: tuple[int, ...] = ()) -> np.ndarray:
    """Return the share of each token over a fine grid of random numbers."""
    grid = (np.arange(2000) + 0.5) / 2000
    tokens = [choose(LOGITS, seen, sampling, float(uniform)) for uniform in grid]
    return np.bincount(tokens, minlength=4) / len(tokens)


def test_plain_sampling_follows_the_softmax():
    assert measure_shares(SamplingConfig()) == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=1e-3)


def test_temperature_sharpens_and_zero_takes_the_likeliest():
    squared = np.array([0.25, 0.09, 0.0225, 0.0025])
    assert measure_shares(SamplingConfig(temperature=0.5)) == pytest.approx(squared / squared.sum(), abs=1e-3)
    assert measure_shares(SamplingConfig(temperature=0.0)) == pytest.approx([1, 0, 0, 0])


def test_top_k_keeps_the_likeliest():
    assert measure_shares(SamplingConfig(top_k=2)) == pytest.approx([5 / 8, 3 / 8, 0, 0], abs=1e-3)
    assert measure_shares(SamplingConfig(top_k=100)) == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=1e-3)


def test_top_p_keeps_the_fewest_tokens_that_reach_it():
    assert measure_shares(SamplingConfig(top_p=0.75)) == pytest.approx([5 / 8, 3 / 8, 0, 0], abs=1e-3)
    assert measure_shares(SamplingConfig(top_p=0.01)) == pytest.approx([1, 0, 0, 0])


def test_top_p_applies_to_the_tokens_that_top_k_leaves():
    # The first of the two tokens that top-k leaves has 62.5 %.
    assert measure_shares(SamplingConfig(top_k=2, top_p=0.6)) == pytest.approx([1, 0, 0, 0])


def test_repetition_penalty_lowers_tokens_already_seen():
    shares = measure_shares(SamplingConfig(repetition_penalty=2.0), seen=(0, 0))
    # log 0.5 is negative, so it doubles: 0.25 against 0.3, 0.15, 0.05.
    assert shares == pytest.approx(np.array([0.25, 0.3, 0.15, 0.05]) / 0.75, abs=1e-3)
    positive = np.array([2.0, 1.5], np.float32)
    greedy = SamplingConfig(repetition_penalty=2.0, temperature=0.0)
    assert choose(positive, (), greedy, 0.5) == 0
    assert choose(positive, (0,), greedy, 0.5) == 1


def test_the_largest_random_number_gives_a_token():
    assert choose(LOGITS, (), SamplingConfig(), float(np.nextafter(1, 0))) == 3
