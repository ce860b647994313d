"""What may differ between a job and the one that it starts from, and the config of a job that goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.config.job import JobConfig
from services.config.start import check_start, continued, pin_start
from services.errors import Refused
from tests.support.facts import has_facts

SHA256 = "ab" * 32
OTHER_SHA256 = "cd" * 32
ID = "1122-183045-3fa9c1d2"


def job(**fields: Any) -> JobConfig:
    """Return a small job; a field that is a mapping changes that part of it."""
    record: dict[str, Any] = {
        "steps": 100,
        "model": {"model_type": "gpt2", "num_heads": 2, "embedding_dim": 64},
        "optimizer": {"type": "sgd", "momentum": 0.9},
        "data": {"files": [{"path": "/corpus.txt", "sha256": SHA256}]},
    }
    for key, value in fields.items():
        record[key] = {**record.get(key, {}), **value} if isinstance(value, dict) else value
    return JobConfig.from_json(json.dumps(record))


def starting(**fields: Any) -> JobConfig:
    return job(start_from={"job": ID}, **fields)


def refused(new: JobConfig, earlier: JobConfig | None = None, tokenizer: str = "") -> str:
    with pytest.raises(Refused) as caught:
        check_start(new, earlier or job(), tokenizer)
    return str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"steps": 7, "seed": 3, "batch_size": 8, "num_workers": 5},
        {"optimizer": {"lr": 1.0, "momentum": 0.5, "weight_decay": 0.3}},
        {"schedule": {"type": "warmup_linear", "total_steps": 50}},
        {"model": {"dropout_prob": 0.0, "runner_type": "memory_efficient"}},
        {"wire_dtype": {"gradients": "bfloat16", "weights": "bfloat16"}},
        {"data": {"files": [{"path": "/moved.txt", "sha256": SHA256}]}},
    ],
)
def test_what_neither_tensors_nor_files_depend_on_may_differ(fields: dict[str, Any]) -> None:
    check_start(starting(**fields), job(), "")


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"model": {"embedding_dim": 128}}, "transformer_config.embedding_dim: 128 given, but job"),
        ({"model": {"vocab_size": 99}}, "transformer_config.vocab_size: 99 given"),
        ({"model": {"max_sequence_length": 64}}, "transformer_config.max_sequence_length: 64 given"),
        ({"optimizer": {"type": "adamw"}}, 'training_config.optimizer.type: "adamw" given'),
        ({"optimizer": {"momentum": 0.0}}, "training_config.optimizer.momentum: 0.0 given"),
        ({"optimizer": {"weight_decay_on": "matrices"}}, "training_config.optimizer.weight_decay_on"),
    ],
)
def test_what_the_tensors_depend_on_must_not(fields: dict[str, Any], line: str) -> None:
    found = refused(starting(**fields))
    assert found.startswith(line) and ID in found and "; write " in found
    assert len(found) <= 300


def test_another_update_rule_may_begin_with_a_new_state() -> None:
    new = {"type": "adamw", "amsgrad": True}
    assert "optimizer: false" in refused(starting(optimizer=new))
    check_start(job(start_from={"job": ID, "optimizer": False}, optimizer=new), job(), "")


def test_token_ids_must_mean_the_same() -> None:
    text = {"files": [{"path": "/other.txt", "sha256": OTHER_SHA256}]}
    assert 'training_config.tokenizer_path: "char" is another tokenizer' in refused(starting(data=text))
    file = {"tokenizer_type": "bpe", "tokenizer_path": "/t.json", "tokenizer_sha256": OTHER_SHA256}
    check_start(starting(data={**text, **file}), job(), OTHER_SHA256)
    check_start(starting(data={**text, **file}), job(data=file), "")
    assert "another tokenizer" in refused(starting(data={**text, **file}), tokenizer=SHA256)


def test_token_ids_without_a_tokenizer_are_taken_as_they_are() -> None:
    ids = {"path": "/ids.bin", "kind": "tokens", "sha256": OTHER_SHA256, "identity": SHA256}
    check_start(starting(data={"files": [ids], "tokenizer_type": "none"}), job(), "")


def test_the_vocabulary_counts_wherever_it_is_named() -> None:
    earlier = job(model={"vocab_size": 80})
    check_start(starting(data={"vocab_size": 80}), earlier, "")
    assert "vocab_size: 70 given" in refused(starting(data={"vocab_size": 70}), earlier)


def test_a_pinned_start_names_one_checkpoint() -> None:
    start = pin_start(starting(), 40, SHA256).start_from
    assert start is not None and (start.step, start.model_sha256, start.first_step) == (40, SHA256, 0)
    expecting = job(start_from={"job": ID, "model_sha256": OTHER_SHA256})
    with pytest.raises(Refused, match=r"start_from\.model_sha256"):
        pin_start(expecting, 40, SHA256)
    counting = job(start_from={"job": ID, "step_counter": "continue"})
    with pytest.raises(Refused, match=r"max_steps: 100 given to continue job .* at step 100, expected more"):
        pin_start(counting, 100, SHA256)


HALVES = {"num_workers": 2, "pipeline": {"blocks_per_stage": (3, 3)}}
THIRDS = {"num_workers": 3, "pipeline": {"blocks_per_stage": (2, 2, 2)}}


@pytest.mark.parametrize(
    ("new", "earlier", "facts"),
    [
        (THIRDS, HALVES, "3 stages of [2, 2, 2] blocks given ... has 2 stages of [3, 3] blocks"),
        ({}, HALVES, "no stages given ... has 2 stages"),
        (HALVES, {}, "2 stages of [3, 3] blocks given ... has no stages"),
    ],
)
def test_a_job_that_continues_says_if_its_stages_change(
    new: dict[str, Any], earlier: dict[str, Any], facts: str
) -> None:
    start = {"job": ID, "step_counter": "continue"}
    line = refused(job(**new, start_from=start), job(**earlier))
    assert has_facts(
        line, f"multihost_config.pipeline_parallel_config: {facts} ... start_from.change_split: true"
    )
    assert len(line) <= 300
    check_start(job(**new, start_from=start | {"change_split": True}), job(**earlier), "")
    check_start(starting(**new), job(**earlier), "")


def test_a_job_that_continues_keeps_its_stages_and_may_change_their_schedule() -> None:
    earlier = job(**HALVES)
    check_start(continued(earlier, ID, step=None, steps=200, total_steps=None), earlier, "")
    gpipe = HALVES["pipeline"] | {"schedule": "gpipe"}
    check_start(
        job(num_workers=2, pipeline=gpipe, start_from={"job": ID, "step_counter": "continue"}), earlier, ""
    )


def test_a_job_that_goes_on_differs_in_its_steps_alone() -> None:
    earlier = job(pretrained={"path": "/model", "files": {}}, model={"vocab_size": 80})
    config = continued(earlier, ID, step=50, steps=300, total_steps=None)
    assert config.start_from is not None and config.start_from.first_step == 50
    changes = {"steps": 100, "start_from": None, "pretrained": earlier.pretrained}
    assert config.model_copy(update=changes) == earlier
    check_start(config, earlier, "")


def test_a_job_that_goes_on_gets_the_second_worker_that_checks_need_now() -> None:
    earlier = job(verify_fraction=0.5)
    assert continued(earlier, ID, step=None, steps=200, total_steps=None).min_workers == 2


@pytest.mark.parametrize("kind", ["warmup_linear", "warmup_cosine", "speedrun"])
def test_a_schedule_that_ends_too_early_needs_a_word(kind: str) -> None:
    earlier = job(schedule={"type": kind, "total_steps": 200, "warmup_steps": 5})
    assert continued(earlier, ID, step=None, steps=200, total_steps=None).schedule == earlier.schedule
    with pytest.raises(Refused, match=r"give 300 to stretch it .* or 200 to go on at its last rate"):
        continued(earlier, ID, step=None, steps=300, total_steps=None)
    for total in (200, 300):
        assert continued(earlier, ID, step=None, steps=300, total_steps=total).schedule.total_steps == total


@pytest.mark.parametrize("fields", [{"steps": 1 << 40}, {"step": 1 << 63}, {"total_steps": 0}])
def test_numbers_of_a_request_are_bounded(fields: dict[str, Any]) -> None:
    request = {"step": None, "steps": 300, "total_steps": None, **fields}
    with pytest.raises(Refused):
        continued(job(), ID, **request)
