"""Steps and epochs: whichever ends first ends a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from services.config.job import JobConfig

Load = Callable[..., tuple[JobConfig, list[str]]]
WINDOWS = 3600 - 128
"""Training windows of `corpus.txt`, 4,000 characters, for the default model."""


def fields(notices: list[str]) -> list[str]:
    return [notice.split(":")[0] for notice in notices]


def test_without_num_epochs_windows_are_drawn_with_replacement(load: Load) -> None:
    job, notices = load()
    assert (job.replacement, job.steps, notices) == (True, 1000, [])


@pytest.mark.parametrize(
    ("epochs", "batch", "accumulation", "steps"),
    [(1, 8, 1, 434), (2, 8, 1, 868), (1, 7, 1, 496), (1, 8, 3, 145), (1, 4096, 1, 1)],
)
def test_epochs_end_a_job_before_max_steps(
    load: Load, epochs: int, batch: int, accumulation: int, steps: int
) -> None:
    """An epoch counts the windows of all micro-batches; the last step is whole."""
    training = {"num_epochs": epochs, "batch_size": batch, "gradient_accumulation_steps": accumulation}
    job, notices = load(training_config=training)
    assert (job.replacement, job.steps) == (False, steps)
    assert fields(notices) == ["training_config.num_epochs"]
    assert -(-epochs * WINDOWS // (batch * accumulation)) == steps


def test_max_steps_end_a_job_before_its_epochs(load: Load) -> None:
    job, notices = load(training_config={"num_epochs": 1, "batch_size": 8, "max_steps": 434})
    assert (job.replacement, job.steps, notices) == (False, 434, [])


def test_the_schedule_is_that_of_max_steps(load: Load) -> None:
    training = {"num_epochs": 1, "batch_size": 8, "scheduler_type": "warmup_linear"}
    job, _ = load(training_config=training)
    assert (job.steps, job.schedule.total_steps, job.schedule.warmup_steps) == (434, 1000, 100)


def test_num_epochs_have_no_effect_with_multihost_config_unless_strict(load: Load) -> None:
    multihost = {"enabled": True, "num_workers": 2}
    training = {"num_epochs": 1, "batch_size": 8}
    job, notices = load(training_config=training, multihost_config=multihost)
    assert (job.replacement, job.steps, fields(notices)) == (True, 1000, ["training_config.num_epochs"])
    job, _ = load(training_config={**training, "epochs": "strict"}, multihost_config=multihost)
    assert (job.replacement, job.steps) == (False, 217)


def test_strict_without_num_epochs_draws_each_window_once_until_max_steps(load: Load) -> None:
    job, notices = load(training_config={"epochs": "strict"})
    assert (job.replacement, job.steps, notices) == (False, 1000, [])


def test_windows_of_all_files_count(load: Load, folder: Path) -> None:
    training = {"data_path": ["corpus.txt", "corpus.txt"], "num_epochs": 1, "batch_size": 8}
    assert load(training_config=training)[0].steps == 868


def test_samples_of_a_regression_are_counted(load: Load) -> None:
    training = {"model_type": "linear_regression", "num_epochs": 2, "batch_size": 100}
    job, _ = load(
        training_config={**training, "data_path": "corpus.txt"},
        linear_regression_config={"training_samples": 1000},
    )
    assert (job.steps, job.replacement) == (18, False)


def test_tokens_of_a_text_are_counted_by_its_tokenizer(load: Load, folder: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"abc": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(f"{folder}/tok.json")
    training = {"tokenizer_type": "bpe", "tokenizer_path": "tok.json", "num_epochs": 1, "batch_size": 8}
    job, _ = load(training_config=training)
    assert job.steps == -(-(900 - 128) // 8)


@pytest.mark.parametrize("content", ['{"model": {"type": "BPE"}}', None])
def test_epochs_that_cannot_be_counted_are_a_notice(load: Load, folder: Path, content: str | None) -> None:
    """The worker refuses such a job, as it does without epochs."""
    if content is None:  # one token for the whole text: too short
        content = Tokenizer(models.WordLevel({"?": 0}, unk_token="?")).to_str()
    (folder / "tok.json").write_text(content)
    job, notices = load(
        training_config={"tokenizer_type": "bpe", "tokenizer_path": "tok.json", "num_epochs": 1}
    )
    assert (job.steps, job.replacement) == (1000, False)
    assert [notice.split(" is ")[0] for notice in notices] == ["training_config.num_epochs: 1"]
    assert len(notices[0]) <= 300
