"""JobConfig: canonical JSON, and strict checks of jobs that come as JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig
from services.config.models import (
    CustomConfig,
    GPT2Config,
    LinearRegressionConfig,
    LlamaConfig,
    MLPConfig,
    RopeScaling,
)
from services.errors import Refused
from tests.support.facts import has_facts

DATA = DataConfig(files=(CorpusFile(path="builtin:python-reference", sha256="0" * 64),))
JOB = JobConfig(model=GPT2Config(), data=DATA)


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        JobConfig(model=LinearRegressionConfig(num_features=3)),
        JobConfig(model=MLPConfig(hidden_features=(64, 32, 64), activation="silu")),
        JobConfig(model=LlamaConfig(rope_scaling=RopeScaling(scaling_factor=8.0, original_context_length=8192)),
                  data=DATA),
        JobConfig(model=CustomConfig(model_type="shop.mixers:Mixer", options={"width": 64, "names": ["a", None]}),
                  data=DATA),
        JobConfig(model=GPT2Config(), data=DATA, batch_size=16, validation_batch_size=8, clip_grad_norm=0.1,
                  device=DeviceConfig(mesh_shape=(1, 8), enable_ddp=True, dtype="bfloat16")),
    ],
)  # fmt: skip
def test_json_round_trip(job: JobConfig) -> None:
    assert JobConfig.from_json(job.to_json()) == job
    assert JobConfig.from_json(job.to_json().encode()) == job


def test_equal_jobs_give_equal_text_for_any_order_of_keys() -> None:
    shuffled = json.dumps(dict(reversed(json.loads(JOB.to_json()).items())), indent=2)
    assert JobConfig.from_json(shuffled).to_json() == JOB.to_json()


def test_micro_batches_count_all_workers() -> None:
    job = JOB.model_copy(update={"num_workers": 3, "gradient_accumulation_steps": 4, "batch_size": 5})
    assert (job.micro_batches, job.sequences_per_step) == (12, 60)


def test_a_plan_has_the_workers_and_the_place_that_a_job_asks_for() -> None:
    plan = JOB.model_copy(update={"num_workers": 3, "gradient_accumulation_steps": 4}).plan()
    assert (plan.min_workers, plan.max_workers, plan.preemptible, plan.priority) == (1, 12, True, 0)
    waiting = JOB.model_copy(update={"min_workers": 5}).plan()
    assert (waiting.min_workers, waiting.max_workers) == (5, 5), "it has one micro-batch"
    asked = {"max_workers": 2, "preemptible": False, "priority": -7}
    given = JOB.model_copy(update=asked).plan()
    assert (given.max_workers, given.preemptible, given.priority) == (2, False, -7)


def test_a_job_that_an_earlier_version_has_stored_keeps_its_meaning() -> None:
    new = ("max_workers", "preemptible", "priority")
    stored = {key: each for key, each in json.loads(JOB.to_json()).items() if key not in new}
    assert JobConfig.from_json(json.dumps(stored)) == JOB
    checked = JobConfig.from_json(json.dumps(stored | {"verify_fraction": 0.5}))
    assert checked.plan().min_workers == 1, "one worker checks itself"
    with pytest.raises(Refused, match=r"training_config.min_workers: 1 given with verify_fraction 0.5"):
        checked.check_checkers()


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"min_workers": 2, "max_workers": 1}, "training_config.max_workers: 1 given with min_workers 2"),
        ({"priority": -101}, "priority: -101 given, expected at least -100"),
        ({"seed": -1}, "seed: -1 given, expected at least 0"),
        ({"colour": "red"}, 'colour: unknown key (value "red")'),
        ({"batch_size": "4"}, 'batch_size: "4" given, expected a whole number'),
        ({"batch_size": True}, "batch_size: true given, expected a whole number"),
        (
            {"model": {"model_type": "lama"}},
            'model.model_type: "lama" given, expected one of: gpt2, llama, linear_regression, mlp, custom',
        ),
        ({"model": {"model_type": 3}}, "model: {'model_type': 3} given"),
        ({"model": {"model_type": "a b:C"}}, 'model.model_type: "a b:C" given, expected a text that matches'),
        ({"model": {"model_type": "llama", "num_groups": 4}}, "transformer_config.num_groups: 4 given"),
        ({"model": {"model_type": "gpt2", "num_heads": 0}}, "model.num_heads: 0 given"),
        ({"model": {"model_type": "gpt2", "num_heads": 5}}, "transformer_config.embedding_dim: 384 given"),
        ({"data": None}, "training_config.data_path: none given"),
        ({"device": {"mesh_shape": [1, 8]}}, "device_config.mesh_shape: [1, 8] given"),
        ({"optimizer": {"nesterov": True}}, "training_config.optimizer.nesterov: true given"),
        (
            {"schedule": {"type": "warmup_cosine", "warmup_steps": 1000}},
            "scheduler_config.warmup_steps: 1000",
        ),
        ({"schedule": {"type": "warmup_cosine", "min_lr": 1.0}}, "scheduler_config.min_lr: 1.0"),
        ({"name": "two\nlines"}, "training_config.project_name"),
        (
            {"wire_dtype": "bf17"},
            'wire_dtype: "bf17" given, expected float32, bfloat16, float16',
        ),
        (
            {"wire_dtype": {"activations": "bfloat16"}},
            "training_config.wire_dtype.activations: bfloat16 given without a pipeline",
        ),
        ({"wire_dtype": {"weights": "half"}}, 'wire_dtype.weights: "half" given, expected one of: float32'),
    ],
)
def test_a_bad_job_in_json_is_refused(change: dict[str, object], facts: str) -> None:
    fields = {**json.loads(JOB.to_json()), **change}
    with pytest.raises(Refused) as caught:
        JobConfig.from_json(json.dumps(fields))
    assert has_facts(str(caught.value), facts)
    assert "\n" not in str(caught.value)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(JobConfig.model_fields)) | st.text(max_size=8), PLAIN, max_size=5)
)
def test_any_json_is_a_job_or_refused_in_one_line(fields: dict[str, object]) -> None:
    for text in (json.dumps(fields), json.dumps({**json.loads(JOB.to_json()), **fields})):
        try:
            JobConfig.from_json(text)
        except Refused as error:
            assert str(error).isprintable()


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=30))
def test_any_bytes_are_refused_in_one_line(content: bytes) -> None:
    with pytest.raises(Refused) as caught:
        JobConfig.from_json(content)
    assert str(caught.value).isprintable()
