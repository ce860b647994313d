"""`model_path`: settings that a job takes from a checkpoint, and checkpoints that are refused before it is queued."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from services.config.architecture import expected_tensors
from services.config.job import JobConfig
from services.config.job_parts import PretrainedConfig
from services.config.models import GPT2Config, LlamaConfig, RopeScaling
from services.config.pretrained import find_verified_checkpoint
from services.errors import Refused
from tests.support.facts import has_facts

Load = Callable[..., Any]
Refuse = Callable[..., str]

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128, "vocab_size": 50,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 1, "n_positions": 64, "vocab_size": 50,
    "layer_norm_epsilon": 1e-5,
}  # fmt: skip
LLAMA_MODEL = LlamaConfig(
    num_heads=2, num_groups=1, embedding_dim=64, intermediate_dim=96, num_blocks=2, max_sequence_length=128,
    vocab_size=50, dropout_prob=0.0, theta=500000.0,
)  # fmt: skip
GPT2_MODEL = GPT2Config(
    num_heads=2, embedding_dim=64, num_blocks=1, max_sequence_length=64, vocab_size=50, dropout_prob=0.1,
    weight_tying=True, activation="gelu_tanh",
)  # fmt: skip
TOKENIZER = json.dumps(
    {"model": {"type": "BPE", "vocab": {chr(97 + index): index for index in range(26)}, "merges": []}}
)

Make = Callable[..., Path]


@pytest.fixture
def make(folder: Path) -> Make:
    """Return a function that makes a checkpoint's folder `stored` next to the jobs."""

    def make(
        config: dict[str, Any],
        model: GPT2Config | LlamaConfig,
        *,
        change: Callable[[dict[str, Any]], None] | None = None,
        tokenizer: str | None = TOKENIZER,
    ) -> Path:
        place = folder / "stored"
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps(config))
        tensors = {name: np.zeros(shape, np.float32) for name, shape in expected_tensors(model).items()}
        if change is not None:
            change(tensors)
        save_file(tensors, place / "model.safetensors")
        if tokenizer is not None:
            (place / "tokenizer.json").write_text(tokenizer)
        return place

    return make


@pytest.fixture
def llama(make: Make) -> Path:
    return make(LLAMA, LLAMA_MODEL)


@pytest.mark.parametrize("named", ["stored", "stored/", "stored/model.safetensors"])
def test_sizes_come_from_the_checkpoint(llama: Path, load: Load, named: str) -> None:
    job, notices = load(transformer_config={"model_path": named})
    assert notices == []
    assert job.model == LLAMA_MODEL
    files = {name: hashlib.sha256((llama / name).read_bytes()).hexdigest() for name in job.pretrained.files}
    assert job.pretrained == PretrainedConfig(path=str(llama), files=files)
    assert sorted(files) == ["config.json", "model.safetensors"]


def test_the_tokenizer_comes_from_the_checkpoint(llama: Path, load: Load) -> None:
    data = load(transformer_config={"model_path": "stored"})[0].data
    assert (data.tokenizer_type, data.tokenizer_path) == ("bpe", str(llama / "tokenizer.json"))
    job, notices = load(
        training_config={"tokenizer_type": "char"}, transformer_config={"model_path": "stored"}
    )
    assert job.data == data
    assert [notice.split(":")[0] for notice in notices] == ["training_config.tokenizer_type"]


def test_another_tokenizer_may_be_named(llama: Path, load: Load, folder: Path) -> None:
    (folder / "own.json").write_text(TOKENIZER)
    training = {"tokenizer_type": "bpe", "tokenizer_path": "own.json"}
    data = load(training_config=training, transformer_config={"model_path": "stored"})[0].data
    assert data.tokenizer_path == str(folder / "own.json")


def test_gpt2_checkpoint_defaults_match_hugging_face(make: Make, load: Load) -> None:
    make(GPT2, GPT2_MODEL)
    assert load(transformer_config={"model_path": "stored"})[0].model == GPT2_MODEL


def test_sizes_may_be_repeated_and_other_settings_chosen(llama: Path, load: Load) -> None:
    job, notices = load(
        training_config={"model_type": "llama"},
        transformer_config={
            "model_path": "stored", "num_heads": 2, "num_groups": 1, "embedding_dim": 64, "intermediate_dim": 96,
            "num_blocks": 2, "theta": 5e5, "weight_tying": "disabled", "vocab_size": 50, "rope_scaling": None,
            "max_sequence_length": 64, "dropout_prob": 0.05, "runner_type": "memory_efficient",
        },
    )  # fmt: skip
    assert notices == []
    chosen = {"max_sequence_length": 64, "dropout_prob": 0.05, "runner_type": "memory_efficient"}
    assert job.model == LLAMA_MODEL.model_copy(update=chosen)


@pytest.mark.parametrize(
    ("key", "value", "has"),
    [
        ("num_heads", 4, "2"), ("num_groups", 2, "1"), ("embedding_dim", 128, "64"), ("intermediate_dim", 128, "96"),
        ("num_blocks", 3, "2"), ("theta", 1e4, "500000.0"), ("weight_tying", "enabled", "false"),
        ("vocab_size", 64, "50"), ("max_sequence_length", 256, "128"),
        ("rope_scaling", {"scaling_factor": 8.0, "original_context_length": 8192}, "null"),
    ],
)  # fmt: skip
def test_sizes_that_differ_are_refused_with_both_values(
    llama: Path, refused: Refuse, key: str, value: Any, has: str
) -> None:
    line = refused(transformer_config={"model_path": "stored", key: value})
    assert line.startswith(f"transformer_config.{key}: ")
    assert has_facts(line, f"expected {has} ... /stored; ")


def test_another_model_is_refused(llama: Path, refused: Refuse) -> None:
    line = refused(transformer_config={"model_path": "stored", "model_type": "gpt2"})
    assert line.startswith('transformer_config.model_type: "gpt2" given, expected "llama"')


@pytest.mark.parametrize(
    "rotation",
    [
        {"rope_theta": 500000.0, "rope_scaling": {
            "rope_type": "llama3", "factor": 8, "low_freq_factor": 1.0, "high_freq_factor": 4,
            "original_max_position_embeddings": 8192}},
        {"rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500000, "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}},
    ],
)  # fmt: skip
def test_rope_scaling_of_llama_3_1_is_read(make: Make, load: Load, rotation: dict[str, Any]) -> None:
    config = {key: value for key, value in LLAMA.items() if key != "rope_theta"} | rotation
    make(config, LLAMA_MODEL)
    model = load(transformer_config={"model_path": "stored"})[0].model
    assert model.rope_scaling == RopeScaling(scaling_factor=8.0, original_context_length=8192)
    assert model.theta == 500000.0


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        ({**LLAMA, "model_type": "mistral"}, 'model_type is "mistral", expected gpt2 or llama'),
        ({**LLAMA, "rms_norm_eps": 1e-6}, "rms_norm_eps is 1e-06, expected 1e-05"),
        ({key: LLAMA[key] for key in LLAMA if key != "rms_norm_eps"}, "rms_norm_eps is 1e-06, expected 1e-05"),
        ({**LLAMA, "hidden_act": "gelu"}, 'hidden_act is "gelu", expected "silu"'),
        ({**LLAMA, "attention_bias": True}, "attention_bias is true, expected false"),
        ({**LLAMA, "mlp_bias": True}, "mlp_bias is true, expected false"),
        ({**LLAMA, "head_dim": 64}, "head_dim is 64, expected 32"),
        ({**LLAMA, "rope_scaling": {"rope_type": "yarn"}}, 'rope_scaling.rope_type is "yarn", expected default or'),
        ({**LLAMA, "rope_scaling": 5}, "rope_scaling is 5, expected a mapping or null"),
        ({**LLAMA, "rope_scaling": {"rope_type": "llama3"}}, "rope_scaling.scaling_factor"),
        ({**LLAMA, "hidden_size": "64"}, "embedding_dim"),
        ({**LLAMA, "num_attention_heads": 0}, "num_heads"),
        ({**LLAMA, "num_attention_heads": 4}, "embedding_dim: 64 given with num_heads 4"),
        ({**GPT2, "n_inner": 100}, "n_inner is 100, expected 256"),
        ({**GPT2, "activation_function": "relu"}, 'activation_function is "relu", expected one of: gelu, gelu_new'),
        ({**GPT2, "layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06, expected 1e-05"),
        ({**GPT2, "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is true, expected false"),
        ({"n_embd": 64}, "model_type is null, expected gpt2 or llama"),
        ([], "JSON object"),
    ],
)  # fmt: skip
def test_an_unsupported_architecture_is_refused(
    llama: Path, refused: Refuse, config: Any, facts: str
) -> None:
    (llama / "config.json").write_text(json.dumps(config))
    found = refused(transformer_config={"model_path": "stored"})
    assert "config.json: " in found
    assert has_facts(found, facts)


def drop(name: str) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        del tensors[name]

    return change


def put(name: str, array: Any) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.update({name: array})


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (drop("model.norm.weight"), "model.norm.weight ... [64]"),
        (put("model.layers.1.self_attn.k_proj.weight", np.zeros((64, 64), np.float32)),
         "model.layers.1.self_attn.k_proj.weight has shape [64, 64], expected [32, 64]"),
        (put("model.embed_tokens.weight", np.zeros((64, 64), np.float32)), "has shape [64, 64], expected [50, 64]"),
        (put("model.norm.weight", np.zeros(64, np.int64)), "model.norm.weight has dtype I64, expected ... F32"),
        (put("model.layers.0.self_attn.q_proj.bias", np.zeros(64, np.float32)),
         'tensor "model.layers.0.self_attn.q_proj.bias" ... llama'),
        (put("model.layers.2.mlp.up_proj.weight", np.zeros((96, 64), np.float32)),
         'tensor "model.layers.2.mlp.up_proj.weight" ... llama'),
    ],
)  # fmt: skip
def test_tensors_that_differ_are_refused(
    make: Make, refused: Refuse, change: Callable[[dict[str, Any]], None], facts: str
) -> None:
    make(LLAMA, LLAMA_MODEL, change=change)
    found = refused(transformer_config={"model_path": "stored"})
    assert found.startswith("transformer_config.model_path: ")
    assert has_facts(found, facts)


def test_constants_in_older_checkpoints_are_ignored(make: Make, load: Load) -> None:
    make(
        LLAMA,
        LLAMA_MODEL,
        change=put("model.layers.0.self_attn.rotary_emb.inv_freq", np.zeros(16, np.float32)),
    )
    assert load(transformer_config={"model_path": "stored"})[0].model == LLAMA_MODEL


@pytest.mark.parametrize(
    ("damage", "facts"),
    [
        (lambda place: (place / "model.safetensors").unlink(), "model.safetensors ... model.safetensors.index"),
        (lambda place: (place / "model.safetensors").write_bytes(b"no tensors"), "model.safetensors"),
        (lambda place: (place / "config.json").write_text("{"), "config.json"),
        (lambda place: (place / "config.json").unlink(), 'no file "stored/config.json"; looked in'),
        (lambda place: (place / "tokenizer.json").unlink(), "training_config.tokenizer_path: none given"),
        (lambda place: (place / "tokenizer.json").write_text(
            json.dumps({"model": {"type": "BPE", "vocab": {"a": 50}, "merges": []}})),
         "51 tokens, expected at most ... 50"),
        (lambda place: (place / "state.json").write_text("{}"), "state.json"),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_refused(
    llama: Path, refused: Refuse, damage: Callable[[Path], Any], facts: str
) -> None:
    damage(llama)
    assert has_facts(refused(transformer_config={"model_path": "stored"}), facts)


def test_a_file_cut_short_is_refused(llama: Path, refused: Refuse) -> None:
    content = (llama / "model.safetensors").read_bytes()
    (llama / "model.safetensors").write_bytes(content[:-1])
    assert "model.safetensors" in refused(transformer_config={"model_path": "stored"})


@pytest.mark.parametrize(
    "weight_map", [{"a": "../model.safetensors"}, {"a": 3}, [], {"a": ".hidden"}, {"a": "gone.safetensors"}]
)
def test_an_index_names_files_in_its_folder(llama: Path, refused: Refuse, weight_map: Any) -> None:
    (llama / "model.safetensors").unlink()
    (llama / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    line = refused(transformer_config={"model_path": "stored"})
    assert "weight_map" in line or "gone.safetensors" in line


def test_a_tensor_that_the_index_names_must_be_there(llama: Path, refused: Refuse) -> None:
    (llama / "model.safetensors").rename(llama / "part.safetensors")
    index = {"weight_map": {"lm_head.weight": "part.safetensors", "other": "part.safetensors"}}
    (llama / "model.safetensors.index.json").write_text(json.dumps(index))
    assert has_facts(refused(transformer_config={"model_path": "stored"}), "part.safetensors ... other")


def test_a_custom_model_has_no_model_path(refused: Refuse) -> None:
    own = {"model_type": "shop.models:Mixer", "model_path": "stored"}
    assert 'model_path: "stored" given with model_type "shop.models:Mixer", expected none' in refused(
        transformer_config=own
    )


def test_a_job_sent_as_json_is_checked_too(llama: Path, load: Load) -> None:
    fields = json.loads(load(transformer_config={"model_path": "stored"})[0].to_json())
    fields["model"]["vocab_size"] = None
    with pytest.raises(Refused, match=r"transformer_config\.model_path: .* vocab_size"):
        JobConfig.from_json(json.dumps(fields))
    fields["pretrained"]["files"] = {"../x": "0" * 64}
    with pytest.raises(Refused, match="pretrained"):
        JobConfig.from_json(json.dumps(fields))


def test_files_are_verified_by_their_sha256(llama: Path, load: Load, tmp_path: Path) -> None:
    pretrained = load(transformer_config={"model_path": "stored"})[0].pretrained
    assert find_verified_checkpoint(pretrained) == llama
    (tmp_path / "lake").mkdir()
    llama.rename(tmp_path / "lake" / "stored")
    assert find_verified_checkpoint(pretrained, tmp_path / "lake") == tmp_path / "lake" / "stored"
    (tmp_path / "lake" / "stored" / "config.json").write_text("{}")
    with pytest.raises(Refused, match=r"config\.json has sha256 "):
        find_verified_checkpoint(pretrained, tmp_path / "lake")
    (tmp_path / "lake" / "stored" / "config.json").unlink()
    with pytest.raises(Refused, match=r"config\.json: no such file"):
        find_verified_checkpoint(pretrained, tmp_path / "lake")
