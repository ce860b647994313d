"""Checkpoints give the logits of the published architectures and start jobs; so do Hugging Face's own files."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mesh.device import Mesh
from services.checkpoints.hugging_face import HuggingFaceFolder
from services.checkpoints.write import (
    write_checkpoint,
)
from services.config.architecture import expected_tensors, read_architecture
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig
from services.config.load import load_job
from services.config.models import GPT2Config, LlamaConfig, RopeScaling
from services.errors import Refused
from services.tensors.layout import Layout
from tests.support.published_models import logits
from tests.support.ranges import Ranges
from training.data.tokenizer import build_character_tokenizer
from training.models.build import (
    build_model,
)
from training.models.initialise import (
    build_layout,
)
from training.models.pretrained import load_pretrained_weights, open_model
from training.step import TrainingStep

TEXT = "".join(f"{number} times {number} is {number * number}.\n" for number in range(200))
GPT2: dict[str, Any] = {
    "num_heads": 2, "embedding_dim": 64, "num_blocks": 2, "max_sequence_length": 32, "dropout_prob": 0.0,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "num_heads": 4, "num_groups": 2, "embedding_dim": 128, "intermediate_dim": 192, "num_blocks": 2,
    "max_sequence_length": 64, "dropout_prob": 0.0, "theta": 10000.0,
}  # fmt: skip
# With a context of 16, rotations of 6 to 63,000 tokens are stretched, so a few tokens show the scaling.
SCALED = RopeScaling(scaling_factor=8.0, original_context_length=16)

MODELS: dict[str, GPT2Config | LlamaConfig] = {
    "gpt2": GPT2Config(**GPT2, weight_tying=True, activation="gelu_tanh"),
    "gpt2-exact-untied": GPT2Config(**GPT2),
    "gpt2-bare": GPT2Config(**GPT2, bias=False, positional_embedding_type="fixed"),
    "llama": LlamaConfig(**LLAMA),
    "llama-tied-scaled": LlamaConfig(**LLAMA, weight_tying=True, rope_scaling=SCALED),
}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def job_of(corpus: Path) -> Callable[..., tuple[JobConfig, list[str]]]:
    """Return a function that loads a job on the corpus, given its transformer_config and training_config."""

    def load(model: Mapping[str, Any], **training: Any) -> tuple[JobConfig, list[str]]:
        document = {
            "training_config": {"data_path": str(corpus), **training},
            "transformer_config": dict(model),
        }
        path = corpus.parent / "job.yaml"
        path.write_text(json.dumps(document))
        return load_job(path)

    return load


def job_with(model: GPT2Config | LlamaConfig, corpus: Path) -> JobConfig:
    import hashlib

    data = DataConfig(files=(CorpusFile(path=str(corpus), sha256=hashlib.sha256(TEXT.encode()).hexdigest()),))
    return JobConfig(seed=7, model=model, data=data)


def add_noise(step: TrainingStep) -> Any:
    """Return weights as if trained: no zeros, ones or equal rows that would hide a mistake."""
    noise = np.random.Generator(np.random.PCG64(1)).standard_normal(step.layout.elements, np.float32)
    return step.initial_weights() + np.float32(0.1) * noise


def export(root: Path, config: JobConfig, step: TrainingStep, weights: Any) -> Path:
    return write_checkpoint(
        root, job="j", generation=1, step=3, config_json=config.to_json(), layout=step.layout, weights=weights,
        optimizer_state={}, files=step.checkpoint_files(),
    ).path  # fmt: skip


@pytest.fixture(params=MODELS)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path: Path, corpus: Path, mesh: Mesh
) -> tuple[Path, Any, Any]:
    """Return a checkpoint's folder, its flat weights, and the loss of each of 32 or 64 tokens."""
    config = job_with(MODELS[request.param], corpus)
    step = TrainingStep(config, mesh)
    weights = add_noise(step)
    for index, entry in enumerate(step.layout.entries):
        step.load(index, weights[entry.offset : entry.stop])
    loss, tokens = step.evaluate(0)
    return export(tmp_path / "run", config, step, weights), weights, loss / tokens


def test_an_exported_model_gives_the_loss_of_the_published_architecture(
    checkpoint: tuple[Path, Any, Any],
) -> None:
    """Compare the worker's held-out loss with that of a float64 model that reads only the exported files."""
    folder, _, loss = checkpoint
    config = json.loads((folder / "config.json").read_text())
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    ids = np.array([vocabulary[character] for character in TEXT])
    tokens = config.get("n_positions") or config["max_position_embeddings"]
    held_out = ids[int(0.9 * len(ids)) :]
    sums, count = 0.0, 0
    for start in range(0, min(4 * tokens, len(held_out) - 1), tokens):
        window = held_out[start : start + tokens + 1]
        scores = logits(folder, window[:-1])
        scores -= np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1, keepdims=True)) + scores.max(
            -1, keepdims=True
        )
        sums -= scores[np.arange(len(window) - 1), window[1:]].sum()
        count += len(window) - 1
    assert sums / count == pytest.approx(loss, rel=2e-6)


PEER_SCRIPT = """
import json, sys
import numpy as np, torch
from transformers import AutoModelForCausalLM
folder, ids, out = sys.argv[1:]
model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
assert not any(report.values()), report
with torch.no_grad():
    np.save(out, model.eval()(torch.tensor([json.loads(ids)])).logits[0].double().numpy())
"""


@pytest.fixture(scope="session")
def peer() -> str:
    """Find a Python with torch and transformers, or the one in `TIERMESH_PEER_PYTHON`; skip without one."""
    python = os.environ.get("TIERMESH_PEER_PYTHON") or "python3"
    probe = subprocess.run([python, "-c", "import torch, transformers"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no Python with torch and transformers; set TIERMESH_PEER_PYTHON to one")
    return python


def test_an_exported_model_gives_the_same_logits_in_transformers(
    checkpoint: tuple[Path, Any, Any], peer: str, tmp_path: Path
) -> None:
    folder, _, _ = checkpoint
    ids = np.arange(24) * 7 % 20
    command = [peer, "-c", PEER_SCRIPT, str(folder), json.dumps(ids.tolist()), str(tmp_path / "logits.npy")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ours = logits(folder, ids)
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), ours, rtol=1e-4, atol=1e-4)


def test_a_checkpoint_starts_a_job_with_its_weights_tokenizer_and_sizes(
    checkpoint: tuple[Path, Any, Any], job_of: Callable[..., Any], mesh: Mesh
) -> None:
    folder, weights, loss = checkpoint
    job, notices = job_of({"model_path": str(folder)}, validation_batch_size=4)
    assert notices == []
    assert job.data.tokenizer_path == str(folder / "tokenizer.json")
    assert JobConfig.from_json(job.to_json()) == job
    step = TrainingStep(job, mesh)
    assert np.array_equal(step.initial_weights(), weights)
    for index, entry in enumerate(step.layout.entries):
        step.load(index, weights[entry.offset : entry.stop])
    total, tokens = step.evaluate(0)
    assert total / tokens == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_the_tensors_that_a_checkpoint_needs_are_the_model_s(name: str, mesh: Mesh) -> None:
    config = MODELS[name].model_copy(update={"vocab_size": 50})
    layout: Layout = build_layout(build_model(config, 50, mesh), decay_all=True)
    held = {entry.export_name: entry.shape for entry in layout.entries}
    assert expected_tensors(config) == held


@pytest.mark.parametrize("name", MODELS)
def test_config_json_gives_back_the_job_s_model_config(name: str, corpus: Path, mesh: Mesh) -> None:
    """Exclude fields that Hugging Face's models lack: fixed positions, missing biases, how to run."""
    config = job_with(MODELS[name], corpus)
    step = TrainingStep(config, mesh)
    said = json.loads(step.checkpoint_files()["config.json"])
    found = read_architecture(said, Path("config.json"))
    changes: dict[str, Any] = {"vocab_size": said["vocab_size"]}
    if isinstance(config.model, GPT2Config):
        changes |= {"bias": True, "positional_embedding_type": "trainable"}
    assert found == config.model.model_copy(update=changes)


def rewrite(folder: Path, target: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """Write a plain Hugging Face folder of the checkpoint's model, with changed tensors."""
    target.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (target / name).write_bytes((folder / name).read_bytes())
    save_file(change(load_file(folder / "model.safetensors")), target / "model.safetensors")
    return target


@pytest.fixture
def llama(tmp_path: Path, corpus: Path, mesh: Mesh) -> tuple[Path, Any]:
    """Return a checkpoint's folder and its weights."""
    config = job_with(MODELS["llama"], corpus)
    step = TrainingStep(config, mesh)
    weights = add_noise(step)
    return export(tmp_path / "run", config, step, weights), weights


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_becomes_float32(
    llama: tuple[Path, Any], tmp_path: Path, job_of: Callable[..., Any], mesh: Mesh, dtype: str
) -> None:
    import ml_dtypes

    half = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
    folder = rewrite(
        llama[0], tmp_path / "half", lambda all_: {name: t.astype(half) for name, t in all_.items()}
    )
    step = TrainingStep(job_of({"model_path": str(folder)})[0], mesh)
    assert np.array_equal(step.initial_weights(), llama[1].astype(half).astype(np.float32))


def test_weights_in_several_files(
    llama: tuple[Path, Any], tmp_path: Path, job_of: Callable[..., Any], mesh: Mesh
) -> None:
    folder = rewrite(llama[0], tmp_path / "parts", lambda tensors: tensors)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:7], "model-00002-of-00002.safetensors": names[7:]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    job, _ = job_of({"model_path": str(folder)})
    assert sorted(job.pretrained.files) == sorted([*parts, "config.json", "model.safetensors.index.json"])
    assert np.array_equal(TrainingStep(job, mesh).initial_weights(), llama[1])


def test_older_names_and_buffers_of_gpt2(
    tmp_path: Path, corpus: Path, job_of: Callable[..., Any], mesh: Mesh
) -> None:
    """Use the format of the first GPT-2 files on the hub: no prefix, and causal masks among the weights."""
    config = job_with(MODELS["gpt2"], corpus)
    step = TrainingStep(config, mesh)
    weights = add_noise(step)

    def rename_to_old_format(tensors: dict[str, Any]) -> dict[str, Any]:
        bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        return bare | {"h.0.attn.bias": np.ones((1, 1, 32, 32), np.float32)}

    folder = rewrite(
        export(tmp_path / "run", config, step, weights), tmp_path / "older", rename_to_old_format
    )
    job, _ = job_of({"model_path": str(folder)})
    assert np.array_equal(TrainingStep(job, mesh).initial_weights(), weights)


def test_fewer_positions_take_the_first_rows(
    tmp_path: Path, corpus: Path, job_of: Callable[..., Any], mesh: Mesh
) -> None:
    longer = MODELS["gpt2"].model_copy(update={"max_sequence_length": 64})
    config = job_with(longer, corpus)
    step = TrainingStep(config, mesh)
    weights = add_noise(step)
    folder = export(tmp_path / "run", config, step, weights)
    job, _ = job_of({"model_path": str(folder), "max_sequence_length": 32})
    shorter = TrainingStep(job, mesh)
    rows = {entry.name: entry for entry in shorter.layout.entries}["position_embedding.weight"]
    whole = {entry.name: entry for entry in step.layout.entries}["position_embedding.weight"]
    assert np.array_equal(
        shorter.initial_weights()[rows.offset : rows.stop], weights[whole.offset : whole.offset + rows.size]
    )


def test_a_worker_checks_the_files_against_the_job(
    llama: tuple[Path, Any], tmp_path: Path, job_of: Callable[..., Any], mesh: Mesh
) -> None:
    folder = rewrite(llama[0], tmp_path / "model", lambda tensors: tensors)
    job, _ = job_of({"model_path": str(folder)})
    step = TrainingStep(job, mesh)
    elsewhere = tmp_path / "data" / "model"
    elsewhere.parent.mkdir()
    folder.rename(elsewhere)
    with pytest.raises(Refused, match=r"model_path.*--data"):
        step.initial_weights()
    assert np.array_equal(load_pretrained_weights(job, step.layout.entries, elsewhere.parent), llama[1])
    with (elsewhere / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(Refused, match=r"model\.safetensors.*sha256"):
        load_pretrained_weights(job, step.layout.entries, elsewhere.parent)


def test_a_range_of_blocks_reads_its_own_tensors_only(
    llama: tuple[Path, Any], job_of: Callable[..., Any], mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = job_of({"model_path": str(llama[0])})
    found, names = [], []
    read = HuggingFaceFolder.read

    def read_and_note(folder: HuggingFaceFolder, name: str) -> Any:
        names.append(name)
        return read(folder, name)

    monkeypatch.setattr(HuggingFaceFolder, "read", read_and_note)
    for step in Ranges(job, mesh, (1,) * job.model.num_blocks).steps:
        names.clear()
        found.append(step.initial_weights())
        assert names == [entry.export_name for entry in step.weights.entries]
        assert found[-1].size == step.weights.elements
    assert len(found) > 1 and np.array_equal(np.concatenate(found), llama[1])


def test_a_stored_model_opens_with_its_tokenizer(checkpoint: tuple[Path, Any, Any], mesh: Mesh) -> None:
    folder, weights, _ = checkpoint
    stored = open_model(folder)
    assert stored.tokenizer_json() == (folder / "tokenizer.json").read_bytes()
    layout = build_layout(build_model(stored.config, stored.config.vocab_size or 0, mesh), decay_all=True)
    assert np.array_equal(stored.weights(layout.entries), weights)


SAVING_SCRIPT = """
import json, sys
import numpy as np, torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
kind, folder, ids, out = sys.argv[1:]
torch.manual_seed(3)
if kind == "gpt2":
    config = GPT2Config(vocab_size=100, n_positions=64, n_embd=64, n_layer=2, n_head=2, initializer_range=0.2)
    model = GPT2LMHeadModel(config)
else:
    config = LlamaConfig(
        vocab_size=100, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, initializer_range=0.2,
        tie_word_embeddings=kind == "tied", rope_theta=10000.0, rope_scaling={
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16},
    )
    model = LlamaForCausalLM(config)
model.eval().save_pretrained(folder, max_shard_size="50KB" if kind == "llama" else "1GB")
ids = torch.tensor([json.loads(ids)])
with torch.no_grad():
    np.save(out, torch.nn.functional.cross_entropy(model(ids[:, :-1]).logits[0], ids[0, 1:]).double().numpy())
"""


@pytest.mark.parametrize("kind", ["gpt2", "llama", "tied"])
def test_a_model_that_transformers_saved_starts_a_job_with_its_loss(
    kind: str, peer: str, tmp_path: Path, corpus: Path, job_of: Callable[..., Any], mesh: Mesh
) -> None:
    tokenizer = build_character_tokenizer(TEXT)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json())
    held_out = tokenizer.encode(TEXT)[int(0.9 * len(tokenizer.encode(TEXT))) :][:65].tolist()
    folder, loss = tmp_path / "saved", tmp_path / "loss.npy"
    command = [peer, "-c", SAVING_SCRIPT, kind, str(folder), json.dumps(held_out), str(loss)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    job, _ = job_of(
        {"model_path": str(folder), "dropout_prob": 0.0}, validation_batch_size=1, tokenizer_type="bpe",
        tokenizer_path=str(tmp_path / "tokenizer.json"),
    )  # fmt: skip
    step = TrainingStep(job, mesh)
    weights = step.initial_weights()
    for index, entry in enumerate(step.layout.entries):
        step.load(index, weights[entry.offset : entry.stop])
    total, tokens = step.evaluate(0)
    assert tokens == 64
    assert total / tokens == pytest.approx(float(np.load(loss)), rel=1e-5)
