"""Lookup of included files and data, by tt-train's rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from services.config.load import load_job
from services.config.paths import REPOSITORY_ROOT

MODEL = "transformer_config: {num_heads: 2, embedding_dim: 8, num_blocks: 1, max_sequence_length: 32}\n"
Load = Callable[..., tuple]
Refuse = Callable[..., str]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "named",
    ["tiny.yaml", "model_configs/tiny.yaml", "configs/model_configs/tiny.yaml",
     "${TT_METAL_HOME}/tt-train/configs/model_configs/tiny.yaml",
     "$TT_METAL_RUNTIME_ROOT/tt-train/configs/model_configs/tiny.yaml"],
)  # fmt: skip
def test_model_files_are_found_in_tt_train(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    write(tmp_path / "metal/tt-train/configs/model_configs/tiny.yaml", MODEL)
    monkeypatch.setenv("TT_METAL_HOME", str(tmp_path / "metal"))
    assert load(training_config={"model_config": named})[0].model.embedding_dim == 8


@pytest.mark.parametrize("named", ["tiny.yaml", "model_configs/tiny.yaml", "configs/model_configs/tiny.yaml"])
def test_model_files_are_found_in_the_tree_of_the_job(tmp_path: Path, named: str) -> None:
    """Load a copy of tt-train's configs/ in any folder, without environment variables."""
    write(tmp_path / "copy/configs/model_configs/tiny.yaml", MODEL)
    write(tmp_path / "copy/data/corpus.txt", "abc " * 1000)
    job = {"training_config": {"model_config": named, "data_path": "data/corpus.txt"}}
    path = write(tmp_path / "copy/configs/training_configs/job.yaml", yaml.safe_dump(job))
    assert load_job(path)[0].model.embedding_dim == 8


def test_shipped_model_files_replace_those_of_tt_train(load: Load) -> None:
    """Load a job of tt-train without tt-metal on the machine."""
    for named in (
        "model_configs/nanogpt_char.yaml",
        "${TT_METAL_RUNTIME_ROOT}/tt-train/configs/model_configs/nanogpt_char.yaml",
    ):
        assert load(training_config={"model_config": named})[0].model.embedding_dim == 384


def test_tt_metal_home_defaults_to_the_home_folder(load: Load, tmp_path: Path) -> None:
    write(tmp_path / "home/.tt-metal/tt-train/configs/model_configs/tiny.yaml", MODEL)
    assert load(training_config={"model_config": "tiny.yaml"})[0].model.embedding_dim == 8


def test_the_file_next_to_the_job_has_precedence(load: Load, folder: Path, tmp_path: Path) -> None:
    write(folder / "tiny.yaml", MODEL)
    write(tmp_path / "work/tiny.yaml", MODEL.replace("8", "16"))
    assert load(training_config={"model_config": "tiny.yaml"})[0].model.embedding_dim == 8
    (folder / "tiny.yaml").unlink()
    assert load(training_config={"model_config": "tiny.yaml"})[0].model.embedding_dim == 16


def test_the_error_of_a_missing_file_names_all_places(
    refused: Refuse, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TT_METAL_HOME", str(tmp_path / "metal"))
    line = refused(training_config={"model_config": "gone.yaml"})
    assert line.startswith('training_config.model_config: no file "gone.yaml"; looked in ')
    for place in (folder, tmp_path / "work", tmp_path / "metal/tt-train", REPOSITORY_ROOT):
        assert f"{place}, " in line, "whole paths"
    assert ", and there in configs and configs/model_configs; " in line
    assert line.endswith("correct the path, or set TT_METAL_HOME")


def test_a_variable_that_is_not_set_is_named(refused: Refuse) -> None:
    assert "NOWHERE_AT_ALL" in refused(training_config={"model_config": "${NOWHERE_AT_ALL}/x.yaml"})


@pytest.mark.parametrize("named", ["a\0b.yaml", "x" * 4000, "~nobody-of-that-name/x.yaml", "\n.yaml"])
def test_impossible_paths_are_refused(refused: Refuse, named: str) -> None:
    assert "training_config.model_config: no file" in refused(training_config={"model_config": named})


def test_a_folder_is_no_file(refused: Refuse, tmp_path: Path) -> None:
    line = refused(training_config={"data_path": str(tmp_path)})
    assert line.startswith("training_config.data_path: ") and "is a folder, expected a file" in line


def test_data_is_found_in_tiermesh_data(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "lake/poems.txt", "abc " * 1000)
    monkeypatch.setenv("TIERMESH_DATA", str(tmp_path / "lake"))
    job, _ = load(training_config={"data_path": "data/poems.txt"})
    assert job.data.files[0].path == str(tmp_path / "lake/poems.txt")


def test_the_error_of_missing_data_names_tiermesh_data(refused: Refuse) -> None:
    line = refused(training_config={"data_path": "data/poems.txt"})
    assert line.startswith('training_config.data_path: no file "data/poems.txt"; looked in ')
    assert "set TIERMESH_DATA" in line


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_multihost_config_may_be_inline_or_a_path_and_nested_or_not(
    load: Load, folder: Path, inline: bool, nested: bool
) -> None:
    section = {"enabled": True, "num_workers": 3}
    write(folder / "three.yaml", yaml.safe_dump({"multihost_config": section}))
    value = section if inline else "three.yaml"
    sections = {"training_config": {"multihost_config": value}} if nested else {"multihost_config": value}
    assert load(**sections)[0].num_workers == 3


def test_the_multihost_config_of_the_job_has_precedence(load: Load, folder: Path) -> None:
    write(folder / "tiny.yaml", MODEL + "multihost_config: {enabled: true, num_workers: 2}\n")
    training = {"model_config": "tiny.yaml"}
    assert load(training_config=training)[0].num_workers == 2
    own = {"enabled": True, "num_workers": 5}
    assert load(training_config=training, multihost_config=own)[0].num_workers == 5


def test_other_sections_may_be_paths_too(load: Load, folder: Path) -> None:
    write(folder / "mesh.yaml", "device_config: {mesh_shape: [1, 2], enable_ddp: true}")
    assert load(device_config="mesh.yaml")[0].device.mesh_shape == (1, 2)


@pytest.mark.parametrize("variable", ["TT_METAL_HOME", "TT_METAL_RUNTIME_ROOT"])
def test_a_path_into_tt_train_is_found_in_the_tree_of_the_job(tmp_path: Path, variable: str) -> None:
    """Load a copy of tt-train's configs/ whose files name each other by a variable that is not set."""
    write(tmp_path / "copy/configs/model_configs/moe/tiny.yaml", MODEL)
    named = f"${{{variable}}}/tt-train/configs/model_configs/moe/tiny.yaml"
    job = {"training_config": {"model_config": named, "data_path": "builtin:python-reference"}}
    path = write(tmp_path / "copy/configs/training_configs/job.yaml", yaml.safe_dump(job))
    assert load_job(path)[0].model.embedding_dim == 8


def test_an_old_file_may_nest_mlp_config(folder: Path) -> None:
    job = {
        "training_config": {
            "mlp_config": {"input_features": 20, "hidden_features": [8], "output_features": 3}
        }
    }
    path = write(folder / "old.yaml", yaml.safe_dump(job))
    assert (load_job(path)[0].model.num_features, load_job(path)[0].model.hidden_features) == (20, (8,))


def test_multihost_config_may_have_its_first_name(load: Load, refused: Refuse) -> None:
    section = {"enabled": True, "num_workers": 3}
    assert load(mpi_config=section)[0].num_workers == 3
    assert load("num_workers=5", mpi_config=section)[0].num_workers == 5
    line = refused(mpi_config=section, multihost_config=section)
    assert line.startswith("mpi_config: given together with multihost_config")


@pytest.mark.parametrize("section", ["multihost_config", "device_config", "eval_config"])
@pytest.mark.parametrize("nothing", [None, ""])
def test_an_empty_section_inside_training_config_counts_as_none(
    load: Load, section: str, nothing: object
) -> None:
    assert load(training_config={section: nothing})[1] == []


def test_every_section_may_stand_inside_training_config(load: Load, folder: Path) -> None:
    write(folder / "mesh.yaml", "device_config: {mesh_shape: [1, 2], enable_ddp: true}")
    nested = {
        "device_config": "mesh.yaml", "eval_config": {"top_k": 7}, "scheduler_type": "warmup_cosine",
        "scheduler_config": {"warmup_steps": 9},
    }  # fmt: skip
    job, _ = load("training_config.device_config.threads=2", training_config=nested)
    assert (job.device.mesh_shape, job.device.threads) == ((1, 2), 2)
    assert (job.sampling.top_k, job.schedule.warmup_steps) == (7, 9)


@pytest.mark.parametrize("content", ["type: SGD\nmomentum: 0.5\n", "optimizer: {type: SGD, momentum: 0.5}\n"])
@pytest.mark.parametrize("key", ["optimizer", "optimizer_config"])
def test_the_optimizer_may_be_a_path(load: Load, folder: Path, key: str, content: str) -> None:
    write(folder / "sgd.yaml", content)
    job, _ = load("lr=0.25", training_config={key: "sgd.yaml"})
    assert (job.optimizer.type, job.optimizer.lr, job.optimizer.momentum) == ("sgd", 0.25, 0.5)


def test_an_optimizer_given_twice_is_refused(refused: Refuse, folder: Path) -> None:
    write(folder / "sgd.yaml", "type: SGD")
    line = refused(training_config={"optimizer": {}, "optimizer_config": "sgd.yaml"})
    assert line.startswith(
        'training_config.optimizer_config: "sgd.yaml" given together with training_config.optimizer'
    )


def test_an_old_file_may_nest_transformer_config(folder: Path) -> None:
    nested = yaml.safe_load(MODEL)["transformer_config"]
    job = {"training_config": {"data_path": "corpus.txt", "transformer_config": nested}}
    path = write(folder / "old.yaml", yaml.safe_dump(job))
    assert load_job(path)[0].model.embedding_dim == 8


def test_without_a_model_tt_train_s_default_is_used_and_reported(folder: Path) -> None:
    path = write(folder / "old.yaml", "training_config: {data_path: corpus.txt, model_type: gpt2}")
    job, notices = load_job(path)
    assert (job.model.num_blocks, job.model.embedding_dim) == (6, 384)
    assert [notice.split(":")[0] for notice in notices] == ["training_config.model_config"]


@pytest.mark.parametrize(
    ("model", "sections", "line"),
    [
        ("device_config: {}", {}, "device_config: unknown key"),
        ("multihost_config: {}", {}, "transformer_config"),
        (MODEL, {"transformer_config": {}}, "transformer_config"),
        (
            "transformer_config: {num_head: 3}",
            {},
            "transformer_config.num_head: unknown key (value 3)",
        ),
        ("- 1", {}, "[1] found, expected a mapping"),
    ],
)
def test_a_bad_model_file_is_refused(
    refused: Refuse, folder: Path, model: str, sections: dict, line: str
) -> None:
    write(folder / "tiny.yaml", model)
    assert line in refused(training_config={"model_config": "tiny.yaml"}, **sections)


def test_a_section_given_twice_is_refused(refused: Refuse) -> None:
    line = refused(training_config={"multihost_config": {}}, multihost_config={})
    assert line.startswith("training_config.multihost_config: given together with multihost_config")


def test_a_file_without_the_section_is_refused(refused: Refuse, folder: Path) -> None:
    write(folder / "mesh.yaml", "devices: 8")
    assert "mesh.yaml has no device_config" in refused(device_config="mesh.yaml")
