"""`tiermesh import-weights`: a job, and generate, have from tt-train's file the same weights as from a checkpoint."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import msgpack
import numpy as np
import pytest
from safetensors.numpy import load_file

from cli.generate import generate_text
from cli.import_weights import weights_file
from cli.import_weights.parameters import Source
from cli.import_weights.weights_file import open_weights
from cli.main import main
from cli.output import Output
from services.config.load import load_job
from tests.cli.import_weights.conftest import GPT2, Trained, evaluate, write_job
from tests.support.small_disk import small_disk
from tests.support.tt_train_weights import pack_entries, parameter_entries, tensor_entries


def test_everything_has_the_same_weights(
    tmp_path: Path, trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = trained.save(tmp_path / "model.msgpack"), tmp_path / "imported"
    assert main(["import-weights", str(file), str(trained.job), "-o", str(folder), "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out.splitlines()[-1])
    assert "left out: adamw (1 tensor), scheduler; a job begins with an optimizer's state" in captured.err
    wanted, found = (
        load_file(trained.checkpoint / "model.safetensors"),
        load_file(folder / "model.safetensors"),
    )
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in wanted.items()
    }
    for name in ("config.json", "tokenizer.json"):
        assert (folder / name).read_bytes() == (trained.checkpoint / name).read_bytes()
    assert not list(tmp_path.glob("*.partial"))

    start = shlex.split(result["start"])
    assert start[:3] == ["tiermesh", "submit", str(trained.job)]
    loss, _, _ = evaluate(trained.job, *start[3:])
    assert loss == trained.loss
    settings = {"temperature": 0.0, "max_new_tokens": 20}
    texts = [generate_text(each, "7 times ", Output(), **settings) for each in (trained.checkpoint, folder)]
    assert texts[0] == texts[1]


def test_what_the_library_writes_is_read(
    tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_file, "_BLOCK_VALUES", 37)
    entries = {
        f"transformer/{name}/value/{key}": value
        for name, array in trained.parameters.items()
        for key, value in (
            ("data", [10, array.ravel().tolist()]),
            ("data_type", [2, 1]),
            ("shape", [12, np.array((1, 1, *array.shape)[-4:], "<u4").tobytes()]),
        )
    }
    (tmp_path / "a.msgpack").write_bytes(msgpack.packb(entries, use_single_float=True))
    trained.save(tmp_path / "b.msgpack")
    with open_weights(tmp_path / "a.msgpack") as one, open_weights(tmp_path / "b.msgpack") as other:
        assert one.shapes.keys() == other.shapes.keys() == trained.parameters.keys()
        for name, array in trained.parameters.items():
            assert one.read(name).tobytes() == other.read(name).tobytes() == array.tobytes()


def test_rotary_positions_give_the_same_products() -> None:
    """Turn queries and keys as tt-train does, by neighbours, and as Hugging Face does, by halves."""
    heads, width, inputs = 3, 8, 5
    random = np.random.Generator(np.random.PCG64(2))
    angles = random.uniform(0, 3, (2, width // 2))

    def turned(pairs: tuple[np.ndarray, np.ndarray], angle: np.ndarray) -> np.ndarray:
        first, second = pairs
        return np.concatenate(
            [first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)],
            -1,
        )

    source = Source("", (heads * width, inputs), heads * width, inputs, rotated_heads=heads)
    theirs, ours = [], []
    for angle in angles:
        matrix = random.standard_normal((heads * width, inputs)).astype(np.float32)
        x = random.standard_normal(inputs)
        vector = (matrix @ x).reshape(heads, width)
        theirs.append(turned((vector[:, 0::2], vector[:, 1::2]), angle))
        vector = (source.convert(matrix) @ x).reshape(heads, width)
        ours.append(turned((vector[:, : width // 2], vector[:, width // 2 :]), angle))
    np.testing.assert_allclose(np.sum(theirs[0] * theirs[1], -1), np.sum(ours[0] * ours[1], -1), rtol=1e-5)


@pytest.mark.parametrize("trained", ["gpt2"], indirect=True)
def test_a_bias_of_zeros_is_dropped_and_token_ids_need_no_tokenizer(
    tmp_path: Path, trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "ids.npy", np.arange(4000, dtype=np.uint16) % 20)
    entries = trained.entries()
    entries |= parameter_entries("gpt2", {"transformer/fc/bias": np.zeros(32, np.float32)})
    (tmp_path / "m.msgpack").write_bytes(pack_entries(entries))
    settings = ["data_path=ids.npy", "vocab_size=32"]
    arguments = ["import-weights", str(tmp_path / "m.msgpack"), str(trained.job), *settings]
    assert main([*arguments, "-o", str(tmp_path / "out")]) == 0
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    np.testing.assert_array_equal(tensors["lm_head.weight"], trained.parameters["transformer/fc/weight"])
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    said = capsys.readouterr().out.splitlines()[-1]
    assert "left out" not in said and said.endswith(f"transformer_config.model_path={tmp_path}/out")
    config, _ = load_job(trained.job, [*settings, f"transformer_config.model_path={tmp_path}/out"])
    assert config.vocabulary == 32


def test_fixed_positions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = write_job(tmp_path, GPT2 | {"positional_embedding_type": "fixed"})
    config, _ = load_job(job)
    from services.config.architecture import expected_tensors
    from tests.support.tt_train_weights import tt_train_parameters

    shapes = expected_tensors(config.model.model_copy(update={"vocab_size": config.vocabulary}))
    tensors = {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}
    parameters = tt_train_parameters(tensors | {"transformer.wpe.weight": None}, 2, 0)
    del parameters["transformer/pos_emb/weight"]
    (tmp_path / "m.msgpack").write_bytes(pack_entries(parameter_entries("transformer", parameters)))
    assert (
        main(["import-weights", str(tmp_path / "m.msgpack"), str(job), "-o", str(tmp_path / "out"), "--json"])
        == 0
    )
    captured = capsys.readouterr()
    assert "positional_embedding_type: fixed" in captured.err
    start = shlex.split(json.loads(captured.out.splitlines()[-1])["start"])
    imported, _ = load_job(job, start[3:])
    assert imported.model.positional_embedding_type == "trainable"


@pytest.mark.parametrize("trained", ["gpt2"], indirect=True)
def test_a_full_disk_leaves_nothing(
    tmp_path: Path, trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    file = trained.save(tmp_path / "m.msgpack")
    with small_disk(tmp_path / "disk", "256k") as disk:
        assert main(["import-weights", str(file), str(trained.job), "-o", str(disk.path / "out")]) == 75
        assert "out: not written (No space left on device); free space" in capsys.readouterr().err
        assert list(disk.path.iterdir()) == []


def test_memory_is_that_of_one_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold the number of values that are Python objects at a time."""
    monkeypatch.setattr(weights_file, "_BLOCK_VALUES", 100)
    blocks: list[int] = []
    unpack = weights_file.WeightsFile._unpack_numbers

    def counting(self: weights_file.WeightsFile, offset: int, count: int) -> object:
        blocks.append(count)
        return unpack(self, offset, count)

    monkeypatch.setattr(weights_file.WeightsFile, "_unpack_numbers", counting)
    array = np.linspace(-3, 3, 1003, dtype=np.float32)
    array[:11] = 0, 127, 128, 255, 256, -33, -129, -70_000, 2**31, -(2.0**40), 2.0**63
    entries = tensor_entries("llama/llama/ln_fc/gamma/value", array)
    (tmp_path / "m.msgpack").write_bytes(pack_entries(entries))
    with open_weights(tmp_path / "m.msgpack") as file:
        assert file.read("llama/ln_fc/gamma").ravel().tolist() == array.tolist()
    assert blocks == [100] * 10 + [3]
