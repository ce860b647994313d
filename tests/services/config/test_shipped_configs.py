"""Every shipped config loads and has the properties that the docs promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from services.config.job import JobConfig
from services.config.load import load_job, load_job_document
from services.config.models import LlamaConfig
from services.config.paths import REPOSITORY_ROOT

CONFIGS = REPOSITORY_ROOT / "configs"
TT_TRAIN_MODELS = (
    "gpt2l gpt2m gpt2s gpt2s_3tier gpt2xl llama3 llama3_2_1B llama3_gpt2s_size llama405b llama70b llama70b_tp32 "
    "llama8b llama8b_efficient llama8b_galaxy_tp_dp llama8b_tp32 mlp_config nanogpt nanogpt_char nanogpt_memory_eff "
    "nanollama3 nanollama3_char tinyllama tinyllama3 tinyllama3_loudbox_tp tinyllama_bpe tinyllama_char "
    "tinyllama_galaxy_tp tinyllama_loudbox_tp"
)
TT_TRAIN_HOSTS = (
    "14worker_fabric 16worker_126block_pp_fabric 16worker_80block_pp_fabric 1worker_fabric 1worker_mpi "
    "2worker_32block_pp_fabric 2worker_fabric 3worker_fabric 3worker_mpi 4worker_32block_pp_fabric "
    "4worker_80block_pp_fabric 4worker_fabric 5worker_32block_pp_fabric 5worker_80block_pp_fabric"
)
TT_TRAIN_DEVICES = "galaxy_ddp galaxy_tp loudbox_ddp loudbox_tp n150 n300_ddp n300_tp"
"""Names of tt-train's own parts. Those of Qwen3 and DeepSeek come with the models."""

EXPECTED = re.compile("^transformer_config.vocab_size: |: read from Tiermesh's own ")
"""Notices of jobs in another folder that name a model's file of Tiermesh."""


@pytest.fixture
def shakespeare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shakespeare.txt").write_text("Speak, speak. " * 1000)
    for name in ("gpt2", "llama3", "tinyllama"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    monkeypatch.setenv("TIERMESH_DATA", str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "names"),
    [("model", TT_TRAIN_MODELS), ("multihost", TT_TRAIN_HOSTS), ("device", TT_TRAIN_DEVICES)],
)
def test_all_parts_of_tt_train_are_shipped_under_their_names(kind: str, names: str) -> None:
    assert set(names.split()) <= {path.stem for path in (CONFIGS / f"{kind}_configs").glob("*.yaml")}


@pytest.mark.usefixtures("shakespeare")
@pytest.mark.parametrize("path", sorted(CONFIGS.glob("training_configs/*.yaml")), ids=lambda path: path.stem)
def test_training_configs_load_without_a_notice(path: Path) -> None:
    job, notices = load_job(path)
    assert not [notice for notice in notices if not EXPECTED.search(notice)]
    assert JobConfig.from_json(job.to_json()) == job


@pytest.mark.parametrize("kind", ["device", "multihost", "eval"])
def test_parts_can_be_included_by_any_job(kind: str, tmp_path: Path) -> None:
    for path in sorted(CONFIGS.glob(f"{kind}_configs/*.yaml")):
        document = {
            "training_config": {"batch_size": 32, "data_path": "builtin:python-reference"},
            "transformer_config": {"num_heads": 32, "embedding_dim": 1024},
            f"{kind}_config": f"{kind}_configs/{path.name}",
        }
        if "_pp_" in path.name:
            document["transformer_config"]["num_blocks"] = int(path.name.split("_")[1].removesuffix("block"))
        job, notices = load_job_document(document, folder=tmp_path)
        fields = {notice.partition(": ")[0] for notice in notices if "Tiermesh's own" not in notice}
        assert fields <= {"multihost_config.socket_type", "multihost_config.pipeline_parallel_config"}
        if kind == "multihost":
            assert path.name.startswith(f"{job.num_workers}worker_")
            assert job.stages == (job.num_workers if "_pp_" in path.name else 1)


@pytest.mark.parametrize(
    "path", sorted(CONFIGS.glob("multihost_configs/*_pp_*.yaml")), ids=lambda path: path.stem
)
def test_pipelines_have_the_stages_and_blocks_of_their_names(path: Path) -> None:
    section = yaml.safe_load(path.read_text())["multihost_config"]
    pipeline = section["pipeline_parallel_config"]
    blocks = pipeline["blocks_per_rank"]
    assert list(blocks) == list(range(section["num_workers"]))
    assert sum(blocks.values()) == pipeline["num_blocks"]
    assert path.name.startswith(f"{section['num_workers']}worker_{pipeline['num_blocks']}block_")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("model_configs/*.yaml")), ids=lambda path: path.stem)
def test_model_configs_can_be_included_by_any_job(path: Path, tmp_path: Path) -> None:
    training = {"model_config": path.name}
    if path.stem not in ("linear_regression", "mlp_config"):
        training["data_path"] = "builtin:python-reference"
    samples = (
        ["mlp_config.training_samples=20000"] if path.stem == "mlp_config" else []
    )  # MNIST's images aren't read
    _, notices = load_job_document({"training_config": training}, folder=tmp_path, overrides=samples)
    assert not [notice for notice in notices if not EXPECTED.search(notice)]


@pytest.mark.usefixtures("shakespeare")
def test_the_nanogpt_config_matches_nanogpt() -> None:
    job, _ = load_job(CONFIGS / "training_configs" / "nanogpt_shakespeare_char_cpu.yaml")
    model, optimizer, schedule = job.model, job.optimizer, job.schedule
    assert (model.num_blocks, model.num_heads, model.embedding_dim, model.max_sequence_length) == (
        4,
        4,
        128,
        64,
    )
    assert (model.dropout_prob, model.bias, model.weight_tying, model.activation) == (
        0.0,
        False,
        False,
        "gelu",
    )
    assert (job.sequences_per_step, job.micro_batches, job.steps) == (12, 2, 2000)
    assert (optimizer.type, optimizer.lr, optimizer.beta1, optimizer.beta2) == ("adamw", 1e-3, 0.9, 0.99)
    assert (optimizer.weight_decay, optimizer.weight_decay_on, job.clip_grad_norm) == (0.1, "matrices", 1.0)
    assert (schedule.type, schedule.warmup_steps, schedule.total_steps) == ("warmup_cosine", 100, 2000)
    assert schedule.min_lr == 1e-4


@pytest.mark.usefixtures("shakespeare")
def test_the_short_nanogpt_config_has_the_same_learning_rates() -> None:
    path = CONFIGS / "training_configs" / "nanogpt_shakespeare_char_cpu.yaml"
    assert load_job(path, ["max_steps=50"])[0].schedule == load_job(path)[0].schedule


def test_the_demo_needs_no_data() -> None:
    job, _ = load_job(CONFIGS / "training_configs" / "demo.yaml")
    assert job.data is not None
    assert (job.data.files[0].path, job.micro_batches) == ("builtin:python-reference", 2)


OF_TT_TRAIN = """
    gpt2l gpt2m gpt2s gpt2s_3tier gpt2xl llama3 llama3_2_1B llama3_gpt2s_size llama405b llama70b llama70b_tp32 llama8b
    llama8b_efficient llama8b_galaxy_tp_dp llama8b_tp32 mlp_config nanogpt nanogpt_char nanogpt_memory_eff nanollama3
    nanollama3_char tinyllama tinyllama3 tinyllama3_loudbox_tp tinyllama_bpe tinyllama_char tinyllama_galaxy_tp
    tinyllama_loudbox_tp
"""
HOSTS_OF_TT_TRAIN = """
    1worker_fabric 1worker_mpi 2worker_fabric 3worker_fabric 3worker_mpi 4worker_fabric 14worker_fabric
    2worker_32block_pp_fabric 4worker_32block_pp_fabric 4worker_80block_pp_fabric 5worker_32block_pp_fabric
    5worker_80block_pp_fabric 16worker_80block_pp_fabric 16worker_126block_pp_fabric
"""


def test_tt_trains_model_and_multihost_configs_ship_under_their_names() -> None:
    assert {path.stem for path in CONFIGS.glob("model_configs/*.yaml")} >= set(OF_TT_TRAIN.split())
    assert {path.stem for path in CONFIGS.glob("multihost_configs/*.yaml")} >= set(HOSTS_OF_TT_TRAIN.split())


SIZES = {
    "llama3_2_1B": (32, 8, 2048, 8192, 16, 500000.0),
    "llama70b_tp32": (64, 32, 8192, 22016, 80, 500000.0),
    "tinyllama_galaxy_tp": (32, 32, 2048, 5632, 22, 10000.0),
    "nanollama3": (6, 3, 384, 1024, 6, 500000.0),
    "tinyllama": (32, 4, 2048, 5632, 22, 10000.0),
    "llama8b": (32, 8, 4096, 14336, 32, 500000.0),
    "llama3_1_8B": (32, 8, 4096, 14336, 32, 500000.0),
}


@pytest.mark.parametrize("name", SIZES)
def test_llamas_have_their_published_sizes(name: str, tmp_path: Path) -> None:
    training = {"model_config": f"{name}.yaml", "data_path": "builtin:python-reference"}
    job, _ = load_job_document({"training_config": training}, folder=tmp_path)
    model = job.model
    assert isinstance(model, LlamaConfig)
    assert (
        model.num_heads,
        model.num_groups,
        model.embedding_dim,
        model.feed_forward_width,
        model.num_blocks,
        model.theta,
    ) == SIZES[name]


@pytest.mark.usefixtures("shakespeare")
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("training_shakespeare_nanogpt_loudbox_ddp", (8, 1, False)),
        ("training_shakespeare_tinyllama_tensor_parallel_3tier_fabric", (1, 8, False)),
        ("training_shakespeare_tinyllama_loudbox_fsdp", (8, 1, True)),
        ("training_shakespeare_gpt2s_loudbox_ddp_tp", (2, 4, False)),
        ("training_shakespeare_llama_8b_tp4_fsdp8", (8, 4, True)),
    ],
)
def test_meshes_are_used_as_the_names_of_the_jobs_say(name: str, sizes: tuple[int, int, bool]) -> None:
    device = load_job(CONFIGS / "training_configs" / f"{name}.yaml")[0].device
    assert (device.data_parallel_size, device.tensor_parallel_size, device.shard_parameters) == sizes
