"""tt-train's keys in both spellings, and the resulting jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from protos.tensors_pb2 import DType
from services.config.job import JobConfig
from services.config.job_parts import SamplingConfig, ScheduleConfig, WireConfig
from services.config.load import load_job
from services.config.models import GPT2Config, LinearRegressionConfig
from services.config.paths import REPOSITORY_ROOT
from services.protocol.plan import WireTypes


def test_defaults_match_tt_train(load: Callable) -> None:
    job, notices = load()
    assert notices == []
    assert (job.name, job.seed, job.steps, job.batch_size) == ("tt_train_nano_gpt", 5489, 1000, 4)
    assert (job.checkpoint_every, job.evaluate_every, job.micro_batches) == (500, 200, 1)
    assert (job.optimizer.type, job.optimizer.lr, job.optimizer.weight_decay) == ("adamw", 3e-4, 0.01)
    assert (job.optimizer.beta1, job.optimizer.beta2, job.optimizer.epsilon) == (0.9, 0.999, 1e-8)
    assert job.optimizer.weight_decay_on == "all"
    assert (job.schedule.type, job.clip_grad_norm, job.device.mesh_shape) == ("identity", None, (1, 1))
    assert job.model == GPT2Config()
    assert job.sampling == SamplingConfig()
    assert job.wire_dtype == WireConfig(gradients="float32", weights="float32")


@pytest.mark.parametrize(("long", "short"), [("float32", "fp32"), ("bfloat16", "bf16"), ("float16", "fp16")])
def test_wire_types_have_two_spellings_and_one_may_set_both_directions(
    load: Callable, long: str, short: str
) -> None:
    both = WireConfig(gradients=long, weights=long)
    for value in (long, short, {"gradients": short, "weights": long}):
        assert load(training_config={"wire_dtype": value})[0].wire_dtype == both
    assert load(f"wire_dtype={short}")[0].wire_dtype == both
    up, _ = load(training_config={"wire_dtype": {"gradients": short}})
    assert up.wire_dtype == WireConfig(gradients=long, weights="float32")
    down, _ = load(f"training_config.wire_dtype.weights={short}")
    assert down.wire_dtype == WireConfig(gradients="float32", weights=long)
    assert down.plan().wire == WireTypes(DType.FLOAT32, DType.Value(long.upper()))
    assert JobConfig.from_json(down.to_json()) == down


def test_old_and_new_spelling_of_the_optimizer_give_the_same_job(load: Callable) -> None:
    old, _ = load(training_config={
        "learning_rate": 0.02, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.3,
    })  # fmt: skip
    new, _ = load(training_config={"optimizer": {
        "type": "AdamW", "lr": 0.02, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6, "weight_decay": 0.3,
    }})  # fmt: skip
    assert old.optimizer == new.optimizer
    assert old.optimizer.lr == 0.02


def test_the_optimizer_block_has_separate_defaults(load: Callable) -> None:
    assert load(training_config={"optimizer": {}})[0].optimizer.lr == 1e-3
    sgd = load(training_config={"optimizer": {"type": "SGD", "momentum": 0.9, "nesterov": True}})[0].optimizer
    assert (sgd.type, sgd.lr, sgd.weight_decay, sgd.momentum, sgd.nesterov) == ("sgd", 1e-3, 0.0, 0.9, True)


@pytest.mark.parametrize("value", ["3e-4", "3E-4", "0.0003", "3.0e-4"])
def test_numbers_may_have_exponents(load: Callable, value: str) -> None:
    assert load(f"learning_rate={value}")[0].optimizer.lr == 3e-4


@pytest.mark.parametrize(
    ("settings", "warmup", "total"),
    [
        ({"max_steps": 5000}, 500, 5000),
        ({"max_steps": 59}, 5, 59),
        ({"max_steps": 50, "total_steps": 2000}, 200, 2000),
    ],
)
def test_the_warm_up_is_a_tenth_of_the_schedule(
    load: Callable, settings: dict, warmup: int, total: int
) -> None:
    job, _ = load(training_config={"scheduler_type": "warmup_linear", **settings})
    assert (job.schedule.warmup_steps, job.schedule.total_steps) == (warmup, total)


def test_warmup_cosine_takes_its_settings_from_scheduler_config(load: Callable) -> None:
    job, notices = load(
        training_config={"scheduler_type": "warmup_cosine", "optimizer": {"lr": 1e-3}},
        scheduler_config={"warmup_steps": 100, "min_lr": 1e-4},
    )
    assert (job.schedule.type, job.schedule.warmup_steps, job.schedule.min_lr) == ("warmup_cosine", 100, 1e-4)
    assert notices == []


def test_speedrun_has_the_defaults_and_the_peak_of_tt_train(load: Callable) -> None:
    job, _ = load(
        training_config={"max_steps": 300, "optimizer": {"type": "AdamW", "amsgrad": True}},
        scheduler_config={"max_lr": 1e-4, "min_lr": 3e-5, "hold_steps": 1000, "beta1_warmup_steps": 50},
    )
    assert (job.optimizer.type, job.optimizer.lr, job.optimizer.amsgrad) == ("adamw", 1e-4, True)
    assert job.schedule == ScheduleConfig(
        type="speedrun", total_steps=300, warmup_steps=100, hold_steps=1000, min_lr=3e-5,
        beta1_warmup_steps=50, beta1_start=0.85, beta1_end=0.95,
    )  # fmt: skip
    assert JobConfig.from_json(job.to_json()) == job


def test_step_schedule_takes_its_settings_from_scheduler_config(load: Callable) -> None:
    job, notices = load(
        training_config={"scheduler_type": "step"}, scheduler_config={"step_size": 30, "gamma": 0.5}
    )
    assert (job.schedule.type, job.schedule.step_size, job.schedule.gamma, notices) == ("step", 30, 0.5, [])


def test_a_flat_momentum_means_sgd_as_in_tt_trains_perceptron(load: Callable) -> None:
    sgd = load(training_config={"learning_rate": 0.1, "momentum": 0.9})[0].optimizer
    assert (sgd.type, sgd.lr, sgd.momentum, sgd.weight_decay) == ("sgd", 0.1, 0.9, 0.0)


@pytest.mark.parametrize("training", [{"use_no_op": True}, {"optimizer": {"type": "NoOp"}}])
def test_no_op_in_both_spellings(load: Callable, training: dict) -> None:
    job, notices = load(training_config=training)
    assert (job.optimizer.type, job.optimizer.lr, notices) == ("noop", 0.0, [])


def test_clipping_is_on_only_when_asked_for(load: Callable) -> None:
    assert load(training_config={"clip_grad_norm_max_norm": 0.5})[0].clip_grad_norm is None
    asked = {"use_clip_grad_norm": True, "clip_grad_norm_max_norm": 0.5}
    assert load(training_config=asked)[0].clip_grad_norm == 0.5


def test_steps_is_an_old_name_of_max_steps(load: Callable) -> None:
    assert load(training_config={"steps": 7})[0].steps == 7


def test_a_validation_batch_is_half_a_batch_rounded_to_the_devices(load: Callable) -> None:
    assert load(training_config={"batch_size": 64})[0].validation_batch_size == 32
    assert load(training_config={"batch_size": 1})[0].validation_batch_size == 1
    mesh = {"mesh_shape": [1, 8], "enable_ddp": True}
    assert load(training_config={"batch_size": 24}, device_config=mesh)[0].validation_batch_size == 8


def test_a_given_validation_batch_size_is_rounded_up_to_the_devices(load: Callable) -> None:
    mesh = {"mesh_shape": [1, 8], "enable_ddp": True}
    training = {"batch_size": 24, "validation_batch_size": 4}
    job, notices = load(training_config=training, device_config=mesh)
    assert job.validation_batch_size == 8
    assert [notice.partition(":")[0] for notice in notices] == ["training_config.validation_batch_size"]


@pytest.mark.parametrize(
    ("training", "sizes", "reported"),
    [
        ({"micro_batch_size": 8}, (8, 1), False),
        ({"micro_batch_size": 8, "gradient_accumulation_steps": 4}, (8, 4), False),
        ({"micro_batch_size": 8, "batch_size": 8, "gradient_accumulation_steps": 4}, (8, 4), False),
        ({"micro_batch_size": 8, "batch_size": 64}, (8, 8), True),
    ],
)
def test_a_micro_batch_size_is_the_batch_or_splits_it(
    load: Callable, training: dict, sizes: tuple[int, int], reported: bool
) -> None:
    job, notices = load(training_config=training)
    assert (job.batch_size, job.gradient_accumulation_steps) == sizes
    assert [notice.partition(":")[0] for notice in notices] == ["training_config.micro_batch_size"] * reported


@pytest.mark.parametrize(
    ("given", "dtype"),
    [("bf16", "bfloat16"), ("bfloat16", "bfloat16"), (True, "bfloat16"), ("fp32", "float32"), (False, None)],
)
def test_mixed_precision_is_the_dtype_on_the_mesh(load: Callable, given: object, dtype: str | None) -> None:
    job, notices = load(training_config={"mixed_precision": given, "sync_gradients_every": 1})
    assert (job.device.dtype, notices) == (dtype, [])


@pytest.mark.parametrize(
    ("given", "tied"),
    [("enabled", True), ("disabled", False), (True, True), (False, False), (None, False)],
)
def test_weight_tying_in_all_its_spellings(load: Callable, given: object, tied: bool) -> None:
    assert load(transformer_config={"weight_tying": given})[0].model.weight_tying is tied


@pytest.mark.parametrize(
    ("multihost", "workers"),
    [
        ({"enabled": True, "num_workers": 3}, 3),
        ({"enabled": True}, 1),
        ({"enabled": False, "num_workers": 0}, 1),
        ({}, 1),
    ],
)
def test_num_workers_sizes_the_step(load: Callable, multihost: dict, workers: int) -> None:
    job, notices = load(training_config={"gradient_accumulation_steps": 2}, multihost_config=multihost)
    assert (job.num_workers, job.micro_batches, notices) == (workers, 2 * workers, [])


def test_a_top_k_of_minus_one_means_all_tokens(load: Callable) -> None:
    assert load(eval_config={"top_k": -1, "temperature": 0.7})[0].sampling == SamplingConfig(temperature=0.7)
    assert load(eval_config={"top_k": 50})[0].sampling.top_k == 50


def test_linear_regression_has_no_corpus(load: Callable) -> None:
    job, _ = load(training_config={"model_type": "linear_regression"})
    assert (job.model, job.data) == (LinearRegressionConfig(), None)
    job, _ = load(
        "linear_regression_config.num_features=5", training_config={"model_type": "linear_regression"}
    )
    assert job.model == LinearRegressionConfig(num_features=5)


def test_the_job_has_absolute_path_and_sha256_of_the_corpus(load: Callable, folder: Path) -> None:
    data = load()[0].data
    assert data.files[0].path == str(folder / "corpus.txt")
    assert data.files[0].sha256 == hashlib.sha256((folder / "corpus.txt").read_bytes()).hexdigest()
    assert (data.tokenizer_type, data.tokenizer_path, data.tokenizer_sha256) == ("char", None, None)


@pytest.mark.parametrize("given", ["tok", "tok/tokenizer.json"])
def test_a_bpe_tokenizer_is_a_file_or_its_folder(load: Callable, folder: Path, given: str) -> None:
    (folder / "tok").mkdir()
    (folder / "tok" / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    data = load(training_config={"tokenizer_type": "bpe", "tokenizer_path": given})[0].data
    assert data.tokenizer_path == str(folder / "tok" / "tokenizer.json")
    assert data.tokenizer_sha256 == hashlib.sha256(b'{"model": {"type": "BPE"}}').hexdigest()


def test_the_default_bpe_tokenizer_is_that_of_tt_train(load: Callable, folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "gpt2-tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    job, notices = load(training_config={"tokenizer_type": "bpe"})
    assert job.data.tokenizer_path == str(folder / "data" / "gpt2-tokenizer.json")
    assert [notice.partition(":")[0] for notice in notices] == ["training_config.tokenizer_path"]


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"training_config": {"num_epochs": 1}}, "training_config.num_epochs"),
        ({"training_config": {"checkpoint_dir": "x"}}, "training_config.checkpoint_dir"),
        ({"training_config": {"use_moreh_adamw": True}}, "training_config.use_moreh_adamw"),
        ({"training_config": {"optimizer": {"type": "MorehAdamW"}}}, "training_config.optimizer.type"),
        ({"training_config": {"optimizer": {"stochastic_rounding": True}}},
         "training_config.optimizer.stochastic_rounding"),
        ({"training_config": {"tokenizer_path": "x"}}, "training_config.tokenizer_path"),
        ({"device_config": {"device_ids": [0], "backend": "emulator"}}, "device_config.device_ids"),
        ({"training_config": {"profile_communication": True}}, "training_config.profile_communication"),
        ({"device_config": {"lazy_parameter_init": True}}, "device_config.lazy_parameter_init"),
        ({"multihost_config": {"socket_type": "mpi"}}, "multihost_config.socket_type"),
        ({"multihost_config": {"num_workers": 2}}, "multihost_config.num_workers"),
        ({"multihost_config": {"pipeline_parallel_config": {"num_blocks": 2}}},
         "multihost_config.pipeline_parallel_config"),
        ({"transformer_config": {"vocab_size": 96}}, "transformer_config.vocab_size"),
        ({"transformer_config": {"theta": 1e4}}, "transformer_config.theta"),
        ({"transformer_config": {"model_type": "llama", "activation": "gelu"}}, "transformer_config.activation"),
        ({"transformer_config": {"embedding_placement": "vocab_parallel"}}, "transformer_config.embedding_placement"),
        ({"transformer_config": {"embedding_placement": "replicated"},
          "device_config": {"mesh_shape": [1, 2], "enable_tp": True}}, "transformer_config.embedding_placement"),
        ({"device_config": {"backend": "ttnn", "threads": 2}}, "device_config.threads"),
        ({"transformer_config": {"rope_scaling": {"scaling_factor": 2.0}}}, "transformer_config.rope_scaling"),
        ({"transformer_config": {"experimental": {"use_composite_layernorm": True}}},
         "transformer_config.experimental.use_composite_layernorm"),
        ({"training_config": {"scheduler_type": "identity"}, "scheduler_config": {"max_lr": 0.1}},
         "scheduler_config.max_lr"),
        ({"scheduler_config": {"hold_steps": 3}}, "scheduler_config"),
        ({"training_config": {"scheduler_type": "speedrun"}, "scheduler_config": {"beta1_start": 0.8}},
         "scheduler_config.beta1_start"),
        ({"training_config": {"scheduler_type": "speedrun", "momentum": 0.9},
          "scheduler_config": {"beta1_warmup_steps": 5}}, "scheduler_config.beta1_warmup_steps"),
        ({"training_config": {"scheduler_type": "speedrun", "learning_rate": 0.1},
          "scheduler_config": {"max_lr": 0.2}}, "training_config.learning_rate"),
        ({"training_config": {"scheduler_type": "step"}, "scheduler_config": {"min_lr": 0.1}},
         "scheduler_config.min_lr"),
        ({"training_config": {"use_no_op": True, "weight_decay": 0.1}}, "training_config.weight_decay"),
        ({"training_config": {"use_kahan_summation": True}}, "training_config.use_kahan_summation"),
        ({"training_config": {"optimizer": {"type": "AdamWComposite"}}}, "training_config.optimizer.type"),
        ({"training_config": {"optimizer": {"kahan_summation": True}}}, "training_config.optimizer.kahan_summation"),
        ({"scheduler_config": {"warmup_steps": 5}}, "scheduler_config.warmup_steps"),
        ({"training_config": {"scheduler_type": "warmup_linear"}, "scheduler_config": {"min_lr": 0.0}},
         "scheduler_config.min_lr"),
    ],
)  # fmt: skip
def test_settings_without_effect_are_reported_once(load: Callable, sections: dict, field: str) -> None:
    _, notices = load(**sections)
    assert len(notices) == 1
    assert notices[0].startswith(f"{field}: ")


@pytest.mark.parametrize(
    "sections",
    [
        {"training_config": {"use_moreh_adamw": False, "use_kahan_summation": False}},
        {"training_config": {"optimizer": {"amsgrad": False, "stochastic_rounding": False}}},
        {"device_config": {"device_ids": [], "enable_tp": False, "trace": False}},
        {"transformer_config": {"embedding_placement": "replicated"}},
        {
            "transformer_config": {"embedding_placement": "vocab_parallel"},
            "device_config": {"mesh_shape": [1, 2], "enable_tp": True},
        },
        {
            "transformer_config": {
                "model_type": "llama",
                "theta": 5e5,
                "bias": False,
                "runner_type": "default",
            }
        },
        {
            "transformer_config": {
                "experimental": {"use_composite_layernorm": False},
                "theta": None,
                "model_path": "",
            }
        },
        {"multihost_config": {"socket_type": "grpc"}},
        {"eval_config": None},
    ],
)
def test_settings_that_are_off_are_not_reported(load: Callable, sections: dict) -> None:
    assert load(**sections)[1] == []


OLD_FILE = """
training_config:
  project_name: shakespeare
  model_type: gpt2
  seed: 5489
  model_save_interval: 500
  batch_size: 64
  num_epochs: 1
  max_steps: 5000
  learning_rate: 3e-4
  weight_decay: 0.01
  use_moreh_adamw: true
  use_kahan_summation: false
  use_clip_grad_norm: false
  clip_grad_norm_max_norm: 1.0
  data_path: corpus.txt
  multihost_config: multihost_configs/4worker_grpc.yaml
  model_config: nanogpt.yaml
eval_config: {repetition_penalty: 1.0, temperature: 0.7, top_k: 50, top_p: 1.0}
device_config: {enable_ddp: true, mesh_shape: [1, 8]}
"""
NEW_FILE = """
training_config:
  project_name: shakespeare
  seed: 5489
  model_save_interval: 500
  batch_size: 64
  num_epochs: 1
  max_steps: 5000
  use_clip_grad_norm: false
  clip_grad_norm_max_norm: 1.0
  data_path: corpus.txt
  multihost_config: multihost_configs/4worker_grpc.yaml
  model_config: ${TT_METAL_RUNTIME_ROOT}/tt-train/configs/model_configs/nanogpt.yaml
  optimizer:
    type: AdamW
    lr: 0.0003
    beta1: 0.9
    beta2: 0.999
    epsilon: 1.0e-8
    weight_decay: 0.01
    amsgrad: false
    stochastic_rounding: false
eval_config: {repetition_penalty: 1.0, temperature: 0.7, top_k: 50, top_p: 1.0}
device_config: {enable_ddp: true, mesh_shape: [1, 8], device_ids: []}
"""


def test_whole_files_in_both_spellings_give_the_same_job(folder: Path) -> None:
    jobs = []
    for name, text, fields in (
        ("old", OLD_FILE, ["training_config.num_epochs", "training_config.use_moreh_adamw"]),
        ("new", NEW_FILE, ["training_config.num_epochs"]),
    ):  # and the vocabulary of nanogpt.yaml, which is not that of the text
        (folder / f"{name}.yaml").write_text(text)
        job, notices = load_job(folder / f"{name}.yaml")
        shipped = [each for each in notices if "Tiermesh's own" in each]
        models = REPOSITORY_ROOT / "configs/model_configs"
        assert f"training_config.model_config: read from Tiermesh's own {models}/nanogpt.yaml" in shipped
        assert sorted(each.split(":")[0] for each in notices if each not in shipped) == [
            *fields,
            "transformer_config.vocab_size",
        ]
        jobs.append(job)
    assert jobs[0] == jobs[1]
    assert (jobs[0].micro_batches, jobs[0].device.data_parallel_size) == (4, 8)
