"""Tests that a checkpoint is read back with the same bits, in files that Hugging Face's tools can load."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save

from services.checkpoints.format import (
    CONSTANTS_FILE,
    LAST_STEP,
    CheckpointInfo,
    State,
)
from services.checkpoints.prune import list_surplus
from services.checkpoints.read import (
    checkpoints_by_step,
    find_newest,
    list_checkpoints,
    read_checkpoint,
    read_state,
)
from services.checkpoints.safetensors_file import pieces
from services.checkpoints.write import (
    write_checkpoint,
)
from services.errors import Refused
from services.tensors.layout import Layout

LAYOUT = Layout.build(
    [
        ("embedding", (5, 4), True, "transformer.wte.weight", False),
        ("projection", (4, 3), True, "head.weight", True),
        ("norm", (4,), False, "transformer.ln_f.weight", False),
    ]
)
CONFIG = {"seed": 5489, "optimizer": {"lr": 1e-3}, "name": "töne"}
CONSTANTS = {"transformer.ln_f.bias": np.zeros(4, np.float32)}
FILES = {"config.json": b'{"model_type": "gpt2"}', "tokenizer.json": b"{}", CONSTANTS_FILE: save(CONSTANTS)}


def any_bits(count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    rng = np.random.Generator(np.random.Philox(seed))
    return rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)


def write(root: Path, step: int = 500, **changes: Any) -> CheckpointInfo:
    arguments: dict[str, Any] = {
        "job": "job-1",
        "generation": 2,
        "step": step,
        "config_json": json.dumps(CONFIG),
        "layout": LAYOUT,
        "weights": any_bits(LAYOUT.elements, seed=step),
        "optimizer_state": {"exp_avg": any_bits(LAYOUT.elements, 1), "applied": np.array([7], np.int64)},
        "files": FILES,
    }
    return write_checkpoint(root, **{**arguments, **changes})


def test_checkpoint_survives_the_round_trip(tmp_path: Path) -> None:
    info = write(tmp_path / "jobs" / "job-1")
    checkpoint = read_checkpoint(info.path)
    assert info.path == tmp_path / "jobs" / "job-1" / "step-00000500"
    assert (checkpoint.job, checkpoint.generation, checkpoint.step) == ("job-1", 2, 500)
    assert checkpoint.layout == LAYOUT
    assert checkpoint.layout.hash == LAYOUT.hash
    assert checkpoint.weights.tobytes() == any_bits(LAYOUT.elements, 500).tobytes()
    assert checkpoint.weights.flags.writeable
    assert checkpoint.optimizer_state.keys() == {"exp_avg", "applied"}
    assert checkpoint.optimizer_state["exp_avg"].tobytes() == any_bits(LAYOUT.elements, 1).tobytes()
    assert checkpoint.optimizer_state["applied"].dtype == np.int64
    assert checkpoint.optimizer_state["applied"].tolist() == [7]
    assert checkpoint.files == FILES
    assert json.loads(checkpoint.config_json) == CONFIG
    assert checkpoint.model_sha256 == info.model_sha256


def test_folder_has_just_the_files_of_the_format(tmp_path: Path) -> None:
    path = write(tmp_path).path
    assert {file.name for file in path.iterdir()} == {
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
        *FILES,
    }
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-00000500"]


def test_model_file_has_hugging_face_names_shapes_and_metadata(tmp_path: Path) -> None:
    path = write(tmp_path).path / "model.safetensors"
    weights = any_bits(LAYOUT.elements, 500)
    tensors = load_file(path)
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        "transformer.wte.weight": (5, 4),
        "head.weight": (3, 4),
        "transformer.ln_f.weight": (4,),
        "transformer.ln_f.bias": (4,),
    }
    assert tensors["transformer.wte.weight"].tobytes() == weights[:20].tobytes()
    assert tensors["head.weight"].tobytes() == weights[20:32].reshape(4, 3).T.tobytes()
    assert tensors["transformer.ln_f.bias"].tolist() == [0.0] * 4
    with safe_open(path, framework="np") as file:
        assert file.metadata() == {"format": "pt"}


def test_equal_weights_give_equal_model_files(tmp_path: Path) -> None:
    weights = np.arange(LAYOUT.elements, dtype=np.float32)
    first = write(tmp_path / "a", weights=weights)
    second = write(tmp_path / "b", step=700, weights=weights, generation=9, job="other")
    assert first.model_sha256 == second.model_sha256
    # Users compare runs of different releases by this hash.
    assert first.model_sha256 == "4a901e64bdcbbce4b8f079cf28418c95e29e4392adab7c734695321bcb3bcfab"


def test_optimizer_state_can_be_skipped(tmp_path: Path) -> None:
    path = write(tmp_path).path
    (path / "optimizer.safetensors").unlink()
    checkpoint = read_checkpoint(path, with_optimizer=False)
    assert checkpoint.optimizer_state == {}
    assert checkpoint.weights.tobytes() == any_bits(LAYOUT.elements, 500).tobytes()


def test_checkpoint_can_be_moved_and_renamed(tmp_path: Path) -> None:
    path = write(tmp_path).path.rename(tmp_path / "my-best-model")
    assert read_checkpoint(path).step == 500


def test_checkpoints_are_listed_by_step(tmp_path: Path) -> None:
    for step in (500, 0, 123_456_789, 1000):
        write(tmp_path, step)
    (tmp_path / "step-00000700").write_text("a file, no checkpoint")
    (tmp_path / "step-7").mkdir()
    names = ["step-00000000", "step-00000500", "step-00001000", "step-123456789"]
    assert [path.name for path in list_checkpoints(tmp_path)] == names
    assert list_checkpoints(tmp_path / "nowhere") == []


ODD_NAMES = [
    "step-18446744073709551616",
    "step-2147483648",
    "step-9" + "9" * 200,
    "step-0000000500",
    "step-٠٠٠٠٠٥٠٠",
    "step-00000500 ",
]


def test_folders_that_no_step_has_are_ignored_and_named(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, LAST_STEP)
    for name in ODD_NAMES:
        shutil.copytree(tmp_path / "step-00000500", tmp_path / name)
    assert list(checkpoints_by_step(tmp_path)) == [500, LAST_STEP]
    found, (notice,) = find_newest(read_checkpoint, tmp_path)
    assert found is not None and found.step == LAST_STEP
    assert f"ignored {len(ODD_NAMES)} folders such as " in notice and notice.isprintable()
    assert list_surplus(tmp_path, LAST_STEP, keep_last=1, keep_every=0) == []


def test_a_folder_that_no_step_has_alone_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ODD_NAMES[0]).mkdir()
    found, notices = find_newest(read_checkpoint, tmp_path)
    assert found is None and ODD_NAMES[0] in notices[0]


@pytest.mark.parametrize("change", [{"step": 2**64}, {"step": -1}, {"generation": 2**64}, {"step": 2**31}])
def test_numbers_of_a_state_that_no_checkpoint_has_are_refused(
    tmp_path: Path, change: dict[str, int]
) -> None:
    path = write(tmp_path).path
    state = State.read(path / "state.json").model_copy(update=change)
    (path / "state.json").write_bytes(state.dump())
    with pytest.raises(Refused, match=f"state.json is damaged: .*{next(iter(change))}"):
        read_state(path)


def test_writing_a_step_again_replaces_the_folder(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, weights=any_bits(LAYOUT.elements, 77), generation=3)
    checkpoint = read_checkpoint(tmp_path / "step-00000500")
    assert checkpoint.generation == 3
    assert checkpoint.weights.tobytes() == any_bits(LAYOUT.elements, 77).tobytes()
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-00000500"]


def test_writing_allocates_one_tensor_not_the_model(tmp_path: Path) -> None:
    layout = Layout.build((f"w{index}", (256, 512), True, f"w{index}", True) for index in range(16))
    weights = np.zeros(layout.elements, np.float32)
    tracemalloc.start()
    write(tmp_path, layout=layout, weights=weights, optimizer_state={"exp_avg": weights}, files={})
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < weights.nbytes / 4


@pytest.mark.parametrize(
    "name",
    ["../state.json", "a/b", "/etc/passwd", ".hidden", "", "state.json", "model.safetensors", "a\nb", "ü"],
)
def test_file_names_outside_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match=r"checkpoint file .*expected"):
        write(tmp_path, files={name: b"x"})
    assert list(tmp_path.iterdir()) == []


def test_tensors_with_the_same_name_are_refused(tmp_path: Path) -> None:
    tied = Layout.build([("a", (2,), True, "w", False), ("b", (2,), True, "w", False)])
    with pytest.raises(Refused, match="layout entry b: export name w"):
        write(tmp_path, layout=tied, weights=np.zeros(4, np.float32))
    clash = {CONSTANTS_FILE: save({"transformer.wte.weight": np.zeros(1, np.float32)})}
    with pytest.raises(Refused, match=r"layout entry embedding: export name transformer\.wte\.weight"):
        write(tmp_path, files=clash)


def test_order_of_constants_does_not_change_the_model_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = {name: np.full(2, number, np.float32) for number, name in enumerate("cab")}
    hashes = set()
    for run, order in enumerate(("abc", "cba", "bca")):
        monkeypatch.setattr(
            "services.checkpoints.export.load",
            lambda data, order=order: {name: constants[name] for name in order},
        )
        hashes.add(write(tmp_path / str(run), files={CONSTANTS_FILE: b""}).model_sha256)
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("constants", "text"),
    [(b"garbage", "not a safetensors file"), (save({"c": np.zeros(1)}), "c is float64, expected float32")],
)
def test_bad_constants_file_is_refused(tmp_path: Path, constants: bytes, text: str) -> None:
    with pytest.raises(Refused, match=f"constants.safetensors: {text}"):
        write(tmp_path, files={CONSTANTS_FILE: constants})


def test_pieces_are_aligned_in_any_order() -> None:
    tensors = {"odd": np.ones(3, np.float32), "count": np.ones(1, np.int64)}
    header, *data = pieces(tensors)
    assert len(header) % 8 == 0
    assert [len(piece) for piece in data] == [8, 12]
