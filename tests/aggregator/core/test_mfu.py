"""A job's parameters, FLOPs per token, and the share of its workers' peak that they are."""

from __future__ import annotations

import math

import pytest

from aggregator.core import events as ev
from tests.support.dialogues.aggregator import Dialogue

PEAK = 1000.0
FLOPS_PER_TOKEN = 6
TOKENS_PER_STEP = 40  # 4 micro-batches of 10
STEP_SECONDS = 2.0


def train(*peaks: float | None, flops_per_token: int | None = FLOPS_PER_TOKEN) -> Dialogue:
    """Commit three steps of workers with these peaks."""
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    for session, peak in enumerate(peaks, 1):
        dialogue.joins(session, holds=(1, 0))
        dialogue.ready(session, holds=(1, 0), flops_per_token=flops_per_token, peak_flops=peak)
    dialogue.stands(1, 0)
    for step in range(3):
        dialogue.now += STEP_SECONDS
        dialogue.commits(1, step)
    return dialogue


def test_it_is_the_share_of_the_peak_of_all_workers() -> None:
    job = train(PEAK, 3 * PEAK).job()
    assert (job.parameters, job.flops_per_token) == (Dialogue().layout.elements, FLOPS_PER_TOKEN)
    assert job.tokens_per_second == pytest.approx(TOKENS_PER_STEP / STEP_SECONDS)
    assert job.mfu == pytest.approx(TOKENS_PER_STEP / STEP_SECONDS * FLOPS_PER_TOKEN / (4 * PEAK))


@pytest.mark.parametrize("peak", [None, 0.0, -1.0, math.inf, math.nan])
def test_it_is_absent_while_a_peak_is_unknown_or_impossible(peak: float | None) -> None:
    dialogue = train(PEAK, peak)
    assert not dialogue.job().HasField("mfu")
    dialogue.give(ev.WorkerLost(2, "gone"))
    dialogue.now += STEP_SECONDS
    dialogue.commits(1, 3)
    assert dialogue.job().HasField("mfu"), "the other worker's is known"


def test_it_is_absent_for_a_model_without_the_formula() -> None:
    job = train(PEAK, flops_per_token=None).job()
    assert not job.HasField("mfu")
    assert job.flops_per_token == 0
    assert job.parameters > 0
