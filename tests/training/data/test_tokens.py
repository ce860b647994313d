"""Micro-batches follow from (seed, step, index); held-out windows cover the last tenth exactly once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from services.corpora.token_file import TokenFile
from services.errors import Refused
from training.data.tokens import (
    TokenArray,
    TokenDataset,
)

LENGTH, TOKENS = 1003, 8


def make_dataset(**changes: int) -> TokenDataset:
    sizes = {"seed": 7, "batch_size": 4, "validation_batch_size": 3, "tokens": TOKENS, **changes}
    return TokenDataset([TokenArray(np.arange(LENGTH, dtype=np.uint32))], **sizes)


def test_targets_follow_inputs_within_the_training_part():
    data = make_dataset()
    starts = set()
    for step in range(200):
        batch = data.micro_batch(step, 0)
        assert batch.inputs.shape == batch.targets.shape == (4, TOKENS)
        assert batch.inputs.dtype == batch.targets.dtype == np.uint32
        assert np.array_equal(batch.targets, batch.inputs + 1)
        assert batch.targets.max() < int(0.9 * LENGTH)
        starts.update(batch.inputs[:, 0].tolist())
    assert min(starts) < 20 and max(starts) > 0.9 * LENGTH - TOKENS - 20


def test_micro_batches_differ_by_step_index_and_seed_alone():
    first = make_dataset().micro_batch(3, 1).inputs
    assert np.array_equal(first, make_dataset().micro_batch(3, 1).inputs)
    assert not np.array_equal(first, make_dataset().micro_batch(3, 2).inputs)
    assert not np.array_equal(first, make_dataset().micro_batch(4, 1).inputs)
    assert not np.array_equal(first, make_dataset(seed=8).micro_batch(3, 1).inputs)
    # Which micro-batch is drawn first makes no difference.
    data = make_dataset()
    data.micro_batch(9, 9)
    assert np.array_equal(first, data.micro_batch(3, 1).inputs)


@pytest.mark.parametrize("validation_batch_size", [1, 3, 5, 64])
@pytest.mark.parametrize("tokens", [8, 10, 64])
def test_every_held_out_token_is_a_target_once(validation_batch_size: int, tokens: int):
    data = make_dataset(validation_batch_size=validation_batch_size, tokens=tokens)
    inputs, targets = [], []
    for index in range(data.evaluation_batches):
        batch = data.evaluation_batch(index)
        assert batch.inputs.shape == (validation_batch_size, tokens)
        assert batch.rows > 0
        inputs += batch.inputs.reshape(-1)[: batch.rows].tolist()
        targets += batch.targets.reshape(-1)[: batch.rows].tolist()
    held_out = list(range(int(0.9 * LENGTH), LENGTH))
    assert inputs == held_out[:-1]
    assert targets == held_out[1:]


def test_no_batch_beyond_the_last():
    data = make_dataset()
    with pytest.raises(IndexError):
        data.evaluation_batch(data.evaluation_batches)


def test_a_text_too_short_is_refused():
    with pytest.raises(Refused, match=r"data_path.*\b20 tokens"):
        TokenDataset(
            [TokenArray(np.zeros(20, np.uint32))], seed=1, batch_size=1, validation_batch_size=1, tokens=32
        )


def test_windows_lie_within_one_file_and_files_take_turns() -> None:
    files = [TokenArray(np.arange(start, start + 500, dtype=np.uint32)) for start in (0, 10_000)]
    data = TokenDataset(
        files, seed=7, batch_size=64, validation_batch_size=3, tokens=TOKENS, replacement=False
    )
    windows = 2 * (450 - TOKENS)
    first = []
    for step in range(-(-windows // 64)):
        batch = data.micro_batch(step, 0)
        assert np.array_equal(batch.targets, batch.inputs + 1)
        assert (batch.targets.max(axis=1) % 10_000 < 450).all()
        first += batch.inputs[:, 0].tolist()
    every = [start + window for start in (0, 10_000) for window in range(450 - TOKENS)]
    assert sorted(first[:windows]) == every


def test_held_out_ends_of_all_files_are_evaluated_in_order() -> None:
    files = [TokenArray(np.arange(start, start + 500, dtype=np.uint32)) for start in (0, 10_000)]
    data = TokenDataset(files, seed=7, batch_size=4, validation_batch_size=3, tokens=TOKENS)
    inputs = []
    for index in range(data.evaluation_batches):
        batch = data.evaluation_batch(index)
        inputs += batch.inputs.reshape(-1)[: batch.rows].tolist()
    assert inputs == [*range(450, 499), *range(10_450, 10_499)]


def test_weights_choose_the_file() -> None:
    files = [TokenArray(np.arange(start, start + 500, dtype=np.uint32)) for start in (0, 10_000)]
    sizes = {"seed": 7, "batch_size": 1000, "validation_batch_size": 3, "tokens": TOKENS}
    for replacement in (True, False):
        data = TokenDataset(files, weights=[1, 3], replacement=replacement, **sizes)
        assert abs((data.micro_batch(0, 0).inputs[:, 0] >= 10_000).mean() - 0.75) < 0.05


def test_token_ids_are_read_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "ids.bin"
    ids = np.zeros(2000, "<u2")
    ids[-3:] = (5, 6, 7)
    ids.tofile(path)
    source = TokenFile.open(path, "data_path")
    data = TokenDataset([source], seed=1, batch_size=2, validation_batch_size=1, tokens=TOKENS)
    assert data.micro_batch(0, 0).inputs.shape == (2, TOKENS)
    last = data.evaluation_batch(data.evaluation_batches - 1)
    assert last.targets.reshape(-1)[: last.rows][-3:].tolist() == [5, 6, 7]
