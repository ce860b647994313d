"""A bad config is refused in one line: dotted field, value, what was expected, how to fix it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from services.config.load import load_job
from services.errors import Refused
from tests.support.facts import has_facts

Refuse = Callable[..., str]


@pytest.mark.parametrize(
    ("sections", "facts"),
    [
        ({"training_config": {"max_stepz": 3}},
         "training_config.max_stepz: unknown key (value 3) ... max_steps"),
        ({"trainin_config": {}}, "trainin_config: unknown key (value {}) ... training_config"),
        ({"training_config": {"optimizer": {"learning_rat": 1}}}, "training_config.optimizer.learning_rat: unknown"),
        ({"training_config": {"optimizer": {"type": "SGD", "beta": 0.9}}},
         "training_config.optimizer.beta: unknown key (value 0.9), expected one of: dampening, lr, momentum"),
        ({"transformer_config": {"experimental": {"use_composite_layernom": 1}}},
         "transformer_config.experimental.use_composite_layernom: unknown key (value 1) ... "
         "use_composite_layernorm"),
        ({"training_config": {3: 4}}, "training_config.3: unknown key (value"),
        ({"training_config": {"batch_size": "many"}},
         'training_config.batch_size: "many" given, expected a whole number ... batch_size: 4'),
        ({"training_config": {"batch_size": 0}}, "training_config.batch_size: 0 given, expected at least 1"),
        ({"training_config": {"batch_size": 2.0}}, "training_config.batch_size: 2.0 given, expected a whole number"),
        ({"training_config": {"batch_size": None}}, "training_config.batch_size: null given, expected a whole number"),
        ({"training_config": {"seed": 2**80}}, "training_config.seed: 1208925819614629174706176 given, expected at"),
        ({"training_config": {"learning_rate": float("nan")}},
         "training_config.learning_rate: nan given, expected a finite number"),
        ({"training_config": {"verify_fraction": 1.5}},
         "training_config.verify_fraction: 1.5 given, expected at most 1"),
        ({"training_config": {"min_workers": 3, "max_workers": 2}},
         "training_config.max_workers: 2 given with min_workers 3, expected at least as many; raise it, or lower "
         "min_workers"),
        ({"training_config": {"priority": 101}},
         "training_config.priority: 101 given, expected at most 100"),
        ({"training_config": {"preemptible": "no"}},
         'training_config.preemptible: "no" given, expected true or false'),
        ({"training_config": {"verify_fraction": 0.1, "min_workers": 1}},
         "training_config.min_workers: 1 given with verify_fraction 0.1, expected at least 2"),
        ({"training_config": {"verify_fraction": 0.1, "exact": False}},
         "training_config.verify_fraction: 0.1 given with exact: false, expected 0"),
        ({"training_config": {"on_faulty": "stop"}},
         'training_config.on_faulty: "stop" given, expected one of: go_back, go_on'),
        ({"training_config": {"exact": "yes"}}, 'training_config.exact: "yes" given, expected true or false'),
        ({"training_config": {"scheduler_type": "cosine"}},
         'training_config.scheduler_type: "cosine" given, expected one of: identity, warmup_linear, warmup_cosine, '
         "speedrun, step; did you mean warmup_cosine?"),
        ({"training_config": {"optimizer": {"type": "Adam"}}}, "training_config.optimizer.type ... AdamW"),
        ({"training_config": {"optimizer": 5}}, "training_config.optimizer: 5 given, expected a mapping"),
        ({"training_config": {"project_name": "a\nb"}}, "training_config.project_name"),
        ({"training_config": {"batch_size": 0, "max_steps": 0}}, "(and 1 more)"),
        ({"training_config": {"learning_rate": 0.1, "optimizer": {"lr": 0.2}}},
         "training_config.learning_rate: 0.1 given ... training_config.optimizer.lr"),
        ({"training_config": {"steps": 3, "max_steps": 4}}, "training_config.steps: 3 given ... max_steps: 4"),
        ({"training_config": {"optimizer": {"type": "SGD", "nesterov": True}}},
         "training_config.optimizer.nesterov: true given with momentum 0.0"),
        ({"training_config": {"scheduler_type": "warmup_linear"}, "scheduler_config": {"warmup_steps": 1000}},
         "scheduler_config.warmup_steps: 1000 given, ... 1000"),
        ({"training_config": {"scheduler_type": "warmup_cosine"}, "scheduler_config": {"min_lr": 0.1}},
         "scheduler_config.min_lr: 0.1 given, expected at most the optimizer's lr, 0.0003"),
        ({"transformer_config": {"embedding_dim": 100}},
         "transformer_config.embedding_dim: 100 given, expected a multiple of num_heads (6) ... "
         "embedding_dim: 102"),
        ({"transformer_config": {"dropout_prob": 1.0}},
         "transformer_config.dropout_prob: 1.0 given, expected a number below 1"),
        ({"transformer_config": {"weight_tying": "on"}}, "expected one of: enabled, disabled, true, false"),
        ({"transformer_config": {}, "linear_regression_config": {}}, "linear_regression_config: given together with"),
        ({"training_config": {"model_type": "linear_regression"}, "transformer_config": {}},
         'training_config.model_type: "linear_regression" given with a transformer_config'),
        ({"device_config": {"mesh_shape": [1, 8], "enable_ddp": True}},
         "training_config.batch_size: 4 given, ... 8"),
        ({"device_config": {"mesh_shape": "1x8"}}, 'device_config.mesh_shape: "1x8" given, expected a list'),
        ({"device_config": {"mesh_shape": [0, 8]}}, "device_config.mesh_shape: [0, 8] given, expected [rows, columns]"),
        ({"device_config": {"mesh_shape": [1, 2, 4]}}, "device_config.mesh_shape: [1, 2, 4] given"),
        ({"device_config": {"mesh_shape": [[1, 8], ["fsdp", "up"]]}}, "ddp, dp, data, fsdp, tp"),
        ({"device_config": 5}, "device_config: 5 given, expected a mapping"),
        ({"multihost_config": {"enabled": True, "num_workers": 0}},
         "multihost_config.num_workers: 0 given, expected at least 1"),
        ({"eval_config": {"top_p": 0}}, "eval_config.top_p: 0 given, expected a number above 0"),
        ({"training_config": {"data_path": "builtin:poems"}},
         'training_config.data_path: "builtin:poems" given, expected a path or builtin:python-reference'),
        ({"training_config": {"tokenizer_type": "bpe"}},
         'training_config.tokenizer_path: no file "data/gpt2-tokenizer.json"; looked in'),
        ({"training_config": {"micro_batch_size": 3, "batch_size": 8}},
         "training_config.micro_batch_size: 3 given with batch_size 8, expected a divisor"),
        ({"training_config": {"micro_batch_size": 2, "batch_size": 8, "gradient_accumulation_steps": 4}},
         "training_config.micro_batch_size: 2 given with batch_size 8 and gradient_accumulation_steps 4, expected two"),
        ({"training_config": {"mixed_precision": "bf16"}, "device_config": {"dtype": "float32"}},
         'training_config.mixed_precision: "bf16" given with device_config.dtype float32, expected the same'),
        ({"training_config": {"mixed_precision": "fp16"}}, 'training_config.mixed_precision: "fp16" given, expected'),
        ({"training_config": {"wire_dtype": "half"}},
         'training_config.wire_dtype: "half" given, expected float32, bfloat16, float16'),
        ({"training_config": {"wire_dtype": {"gradients": "half"}}},
         'training_config.wire_dtype.gradients: "half" given, expected one of: float32, bfloat16, float16'),
        ({"training_config": {"checkpoint": {"on_error": "retry"}}},
         'training_config.checkpoint.on_error: "retry" given, expected one of: continue, stop'),
        ({"training_config": {"checkpoint": {"every_minutes": -0.5}}},
         "training_config.checkpoint.every_minutes: -0.5 given"),
        ({"training_config": {"checkpoint": {"keep_last": -1}}}, "training_config.checkpoint.keep_last: -1 given"),
        ({"training_config": {"checkpoint": {"keep_every": 500}}},
         "training_config.checkpoint.keep_every: 500 given with keep_last 0"),
        ({"training_config": {"checkpoint": {"on_eror": "stop"}}},
         'training_config.checkpoint.on_eror: unknown key (value "stop") ... on_error'),
        ({"training_config": {"wire_dtype": {"weight": "bf16"}}},
         'training_config.wire_dtype.weight: unknown key (value "bf16") ... weights'),
        ({"transformer_config": {"max_sequence_length": 4000}},
         'training_config.data_path: "corpus.txt" ... 4000 characters, expected at least 4446'),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused(refused: Refuse, sections: dict, facts: str) -> None:
    assert has_facts(refused(**sections), facts)


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"training_config": {"model_type": "deepseek"}}, "training_config.model_type"),
        ({"transformer_config": {"model_type": "qwen3"}}, "transformer_config.model_type"),
        ({"training_config": {"sync_gradients_every": 4}}, "training_config.sync_gradients_every"),
        ({"training_config": {"wire_dtype": "int8"}}, "training_config.wire_dtype"),
        ({"training_config": {"wire_dtype": {"gradients": "int4"}}}, "training_config.wire_dtype.gradients"),
        ({"training_config": {"wire_dtype": {"activations": "int8"}}}, "training_config.wire_dtype.activations"),
        ({"training_config": {"accumulation": "mesh"}}, "training_config.accumulation"),
        ({"training_config": {"optimizer": {"type": "Muon", "ns_steps": 5}}}, "training_config.optimizer.type"),
        ({"training_config": {"optimizer": {"type": "MuonWithAdamW"}}}, "training_config.optimizer.type"),
    ],
)  # fmt: skip
def test_unsupported_settings_are_refused(refused: Refuse, sections: dict, field: str) -> None:
    line = refused(**sections)
    assert line.startswith(f"{field}: ")
    assert "is not supported yet" in line


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"a: [", "line 1, column 5: "),
        (b"a: b: c", "line 1, column 5: mapping values"),
        (b"training_config:\n  seed: 1\n  seed: 2\n", 'line 3, column 3: ... "seed"'),
        (b"- 1", "[1] found, expected a mapping"),
        (b"", "null found, expected a mapping"),
        (b"\xff", "UTF-8 ... 0"),
        (b"training_config: {seed: 2020-13-45}", "YAML ... month"),
        (b"training_config: {seed: !!python/name:os.system }", "constructor"),
        (b"[" * 4000, "line 1, column 33: nested more than 32 deep"),
        (b"&a [*a]", "line 1, column 5: the alias *a contains itself"),
        (b"training_config: &a {optimizer: *a}", "the alias *a contains itself"),
        (b"transformer_config: {}", "training_config: missing"),
        (b"training_config: 5", "training_config: 5 given, expected a mapping"),
        (b"#" * (1 << 20) + b"\n", "has 1048577 bytes, expected at most 262144 bytes"),
    ],
)
def test_a_file_that_is_no_config_is_refused(folder: Path, content: bytes, facts: str) -> None:
    path = folder / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(Refused) as caught:
        load_job(path)
    assert has_facts(str(caught.value), facts)
    assert str(caught.value).isprintable()


def test_a_missing_job_is_refused(folder: Path) -> None:
    with pytest.raises(Refused, match=r"gone\.yaml: no such file"):
        load_job(folder / "gone.yaml")
    with pytest.raises(Refused, match="is a folder, expected a regular file"):
        load_job(folder)


def test_a_corpus_that_is_not_utf8_is_refused(refused: Refuse, folder: Path) -> None:
    (folder / "corpus.txt").write_bytes(b"abc\xff" * 1000)
    assert "corpus.txt is not UTF-8" in refused()


def test_a_corpus_that_ends_within_a_character_is_refused(refused: Refuse, folder: Path) -> None:
    (folder / "corpus.txt").write_bytes(b"a" * 1000 + "é".encode()[:1])
    assert "corpus.txt is not UTF-8" in refused()


@pytest.mark.parametrize("content", [b"no json", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_a_file_that_is_no_tokenizer_is_refused(refused: Refuse, folder: Path, content: bytes) -> None:
    (folder / "tokenizer.json").write_bytes(content)
    line = refused(training_config={"tokenizer_type": "bpe", "tokenizer_path": "tokenizer.json"})
    assert "tokenizer.json is no tokenizer.json" in line
