"""Jobs of `model_type: external`: what they say, and what has no meaning for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.config.job import JobConfig
from services.config.load import load_job_document, names_external
from services.config.models import ExternalConfig
from services.config.start import check_start
from services.errors import Refused

FOLDER = Path()


def load(training: dict[str, Any] | None = None, **sections: Any) -> JobConfig:
    """Return the external job of a config."""
    document = {"training_config": {"model_type": "external", **(training or {})}, **sections}
    return load_job_document(document, folder=FOLDER)[0]


def test_an_external_job_has_no_data_and_may_have_more_parameters() -> None:
    job = load(
        {"batch_size": 8, "validation_batches": 5, "gradient_accumulation_steps": 3, "min_workers": 2},
        transformer_config={"max_sequence_length": 250, "max_parameters": 10**9},
    )
    assert job.model == ExternalConfig(max_sequence_length=250, max_parameters=10**9)
    assert job.data is None and job.vocabulary == 0
    assert JobConfig.from_json(job.to_json()) == job
    plan = job.plan()
    assert plan.external and plan.micro_batches == 3
    assert plan.parameters.number == 10**9 and "max_parameters" in plan.parameters.maximum_of
    assert plan.evaluation_batches.known == 5


def test_without_validation_batches_there_is_no_evaluation() -> None:
    plan = load({"max_steps": 10, "eval_every": 2}).plan()
    assert plan.evaluation_batches.check(0) is None
    assert not any(map(plan.evaluates_at, range(11)))


@pytest.mark.parametrize(
    ("training", "sections", "field"),
    [
        ({"data_path": "a.txt"}, {}, "training_config.data_path"),
        ({"tokenizer_type": "bpe"}, {}, "training_config.tokenizer_type"),
        ({"num_epochs": 2}, {}, "training_config.num_epochs"),
        ({"mixed_precision": True}, {}, "training_config.mixed_precision"),
        ({}, {"device_config": {"mesh_shape": [1, 8]}}, "device_config"),
        ({}, {"eval_config": {"top_k": 3}}, "eval_config"),
        (
            {},
            {
                "multihost_config": {
                    "enabled": True,
                    "num_workers": 2,
                    "pipeline_parallel_config": {"num_stages": 2},
                }
            },
            "multihost_config.pipeline_parallel_config",
        ),
        ({}, {"transformer_config": {"num_heads": 4}}, "transformer_config.num_heads"),
        ({"wire_dtype": {"activations": "bfloat16"}}, {}, "training_config.wire_dtype.activations"),
        ({"verify_fraction": 0.1, "exact": False}, {}, "training_config.verify_fraction"),
    ],
)
def test_what_has_no_meaning_is_refused_by_field(
    training: dict[str, Any], sections: dict[str, Any], field: str
) -> None:
    with pytest.raises(Refused) as refused:
        load(training, **sections)
    assert str(refused.value).startswith(f"{field}: ")


def test_a_job_continues_with_the_same_kind_of_model() -> None:
    start = {"job": "20260101-000000-aaaa", "step": 4, "model_sha256": "0" * 64, "step_counter": "restart"}
    job = load({"start_from": start})
    check_start(job, load(), "")
    other = load_job_document({"training_config": {"model_type": "linear_regression"}}, folder=FOLDER)[0]
    with pytest.raises(Refused, match=r"training_config\.model_type"):
        check_start(job, other, "")


def test_a_file_says_whether_its_job_is_external(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    for text, expected in (
        ("training_config: {model_type: external}", True),
        ("training_config: {}\ntransformer_config: {model_type: external}", True),
        ("training_config: {model_type: gpt2}", False),
    ):
        path.write_text(text)
        assert names_external(path) == expected
