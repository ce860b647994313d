"""What `tiermesh validate` says of the shipped jobs, and of jobs of which it knows less."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from cli.validate.cluster import Cluster
from cli.validate.report import make_report
from cli.validate.screen import format_screen
from cli.validate.text import format_report
from services import input_files
from services.config import corpus
from services.config.load import load_job_with_origins
from services.config.paths import REPOSITORY_ROOT
from services.protocol.plan import EvaluationBatches
from training.job_data import JobData

TRAINING_CONFIGS = sorted((REPOSITORY_ROOT / "configs" / "training_configs").glob("*.yaml"))
JOB_S_OWN = Cluster()
TRANSFORMER = (
    "transformer_config: {num_heads: 2, embedding_dim: 64, num_blocks: 1, max_sequence_length: 32}\n"
)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make stand-ins for the corpora and tokenizers of the shipped jobs."""
    (tmp_path / "shakespeare.txt").write_text("Speak, speak. " * 1000)
    for name in ("gpt2", "llama3", "tinyllama"):
        (tmp_path / "data" / name).mkdir(parents=True)
        vocabulary = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 31999}, "merges": []}}
        (tmp_path / "data" / name / "tokenizer.json").write_text(json.dumps(vocabulary))
    monkeypatch.setenv("TIERMESH_DATA", str(tmp_path))
    return tmp_path


def report_of(path: Path, *overrides: str, cluster: Cluster = JOB_S_OWN) -> dict[str, Any]:
    job, origins = load_job_with_origins(path, overrides)
    report = make_report(job, origins, cluster).figures
    lines = [*format_report(report), *format_screen(report)]
    assert all(line.isprintable() and line for line in lines)
    decoded: dict[str, Any] = json.loads(json.dumps(report))
    assert decoded == report
    return report


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("path", TRAINING_CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_job_has_all_figures(path: Path) -> None:
    report = report_of(path)
    for key in ("parameters", "device_memory", "host_memory", "links", "checkpoints"):
        assert report[key], key
    memory = report["device_memory"]
    parts = ("weights", "caches", "inputs", "activations", "gradients", "temporaries")
    assert memory["total_bytes"] == sum(memory[f"{part}_bytes"] for part in parts)
    assert memory["total_bytes"] < memory["chip_bytes"], "shipped jobs fit on the chips of a LoudBox"
    total, *others = report["parameters"].values()
    assert total == sum(others)


def test_a_users_own_model_has_settings_and_no_figures(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "training_config: {data_path: builtin:python-reference}\n"
        "transformer_config: {model_type: 'mixer:Mixer', width: 64}\n"
    )
    report = report_of(path)
    assert [
        report[key] for key in ("parameters", "device_memory", "host_memory", "links", "checkpoints")
    ] == [None] * 5
    assert report["settings"] and report["tokens_per_step"] == 4 * 128


def test_an_epoch_has_a_window_for_each_start(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("abcdefghij" * 100)
    path = tmp_path / "job.yaml"
    path.write_text("training_config: {data_path: corpus.txt, max_steps: 100}\n" + TRANSFORMER)
    report = report_of(path)
    assert report["epochs"] == pytest.approx(100 * 4 / (900 - 32), abs=1e-4)
    assert (report["tokens_per_step"], report["tokens"]) == (4 * 32, 100 * 4 * 32)


@pytest.mark.parametrize(
    "settings",
    [
        "data_path: [one.txt, two.txt]",
        "data_path: one.txt, validation_batches: 3",
        "model_type: linear_regression",
    ],
)
def test_batches_of_an_evaluation_are_those_of_the_worker(tmp_path: Path, settings: str) -> None:
    (tmp_path / "one.txt").write_text("abcdefghij" * 300)
    (tmp_path / "two.txt").write_text("abcdefghij" * 777)
    path = tmp_path / "job.yaml"
    model = "" if "linear" in settings else TRANSFORMER
    path.write_text(f"training_config: {{{settings}, validation_batch_size: 2}}\n{model}")
    job, _ = load_job_with_origins(path)
    batches = JobData.open(job.config).evaluation_batches
    assert job.config.evaluation_batches == batches
    assert job.config.plan().evaluation_batches == EvaluationBatches(batches, "")
    assert report_of(path)["evaluation_batches"] == batches


def test_a_text_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "corpus.txt").write_text("abcdefghij" * 100)
    path = tmp_path / "job.yaml"
    path.write_text("training_config: {data_path: corpus.txt}\n" + TRANSFORMER)
    opened: list[str] = []

    def open_input_file(name: str, place: Path, limit_bytes: int | None = None) -> BinaryIO:
        opened.append(place.name)
        return input_files.open_input_file(name, place, limit_bytes)

    monkeypatch.setattr(corpus, "open_input_file", open_input_file)
    assert report_of(path)["epochs"]
    assert opened == ["corpus.txt"]


def test_epochs_of_text_for_a_tokenizer_are_known_to_workers_only(data: Path) -> None:
    path = data / "job.yaml"
    path.write_text(
        "training_config: {data_path: shakespeare.txt, tokenizer_type: bpe, tokenizer_path: data/gpt2}\n"
        + TRANSFORMER
    )
    report = report_of(path)
    assert report["epochs"] is None
    assert report["vocabulary"] == 32000


def test_figures_are_those_of_the_cluster_that_was_named(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("training_config: {model_type: linear_regression}\n")
    many = report_of(path, "backend=emulator", cluster=Cluster(workers=5, tiers=2))
    assert [each["role"] for each in many["host_memory"]] == ["worker", "aggregator"]
    assert many["links"][1]["links"] == 5
    assert many["device_memory"]["chip"] is None and many["device_memory"]["dtype"] == "float32"
    sharded = report_of(path, cluster=Cluster(shards=3, chip="p150"))
    assert (sharded["tiers"], sharded["shards"]) == (2, 3)
    assert sharded["device_memory"]["chip"] == "p150"
