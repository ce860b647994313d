"""The command `tiermesh validate`: its output, refusals and options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import main


def last_json(text: str) -> dict[str, Any]:
    """Return the JSON object on the last line."""
    parsed = json.loads(text.splitlines()[-1])
    assert isinstance(parsed, dict)
    return parsed


def test_validate_describes_the_job(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(job_file), "--json"]) == 0
    result = last_json(capsys.readouterr().out)
    assert (result["valid"], result["name"], result["steps"], result["micro_batches"]) == (
        True,
        "tiny",
        10,
        1,
    )
    assert main(["validate", str(job_file), "--set", "max_stepz=1", "--json"]) == 2
    captured = capsys.readouterr()
    assert "did you mean max_steps?" in captured.err
    assert last_json(captured.out)["exit_code"] == 2


def test_settings_may_follow_the_file_as_on_tt_trains_command_line(
    job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["validate", str(job_file), "max_steps=7", "--json", "--set", "batch_size=2", "num_targets=3"]
    assert main(words) == 0
    result = last_json(capsys.readouterr().out)
    assert (result["steps"], result["batch_size"]) == (7, 2)
    assert main(["validate", str(job_file), "other.yaml"]) == 2
    assert '"other.yaml": no setting, expected key=value' in capsys.readouterr().err


def test_the_file_of_a_setting_is_named_in_full_for_programs(
    job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = job_file.parent / ("long" * 50) / job_file.name
    moved.parent.mkdir()
    job_file.rename(moved)
    assert main(["validate", str(moved), "--json"]) == 0
    origins = {each["origin"] for each in last_json(capsys.readouterr().out)["settings"]}
    assert str(moved) in origins


def test_validate_shows_what_the_job_would_take(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(job_file), "--set", "max_steps=20", "--workers", "3", "--json"]) == 0
    result = last_json(capsys.readouterr().out)
    origins = {each["key"]: (each["value"], each["origin"]) for each in result["settings"]}
    assert origins["training_config.max_steps"] == (20, "command line")
    assert origins["training_config.batch_size"] == (4, str(job_file))
    assert result["parameters"] == {"total": 10, "layers": 10}
    assert (result["tokens"], result["epochs"]) == (80, pytest.approx(80 / 180, abs=1e-4))
    memory = result["device_memory"]
    assert (memory["chip"], memory["dtype"]) == ("wormhole", "bfloat16")
    assert 0 < memory["weights_bytes"] < memory["total_bytes"] < memory["chip_bytes"]
    assert [each["role"] for each in result["host_memory"]] == ["worker", "aggregator", "optimizer"]
    assert result["links"][1]["total_bytes"] == 3 * 40
    assert result["checkpoints"]["written"] == 2
    assert main(["validate", str(job_file), "--shards", "2", "--json"]) == 0
    roles = [each["role"] for each in last_json(capsys.readouterr().out)["host_memory"]]
    assert roles == ["worker", "shard", "aggregator"]


def test_validate_says_what_to_change_if_a_chip_is_too_small(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "training_config: {data_path: builtin:python-reference, batch_size: 64}\n"
        "transformer_config: {num_heads: 16, embedding_dim: 2048, num_blocks: 32, max_sequence_length: 1024}\n"
    )
    assert main(["validate", str(path), "--json"]) == 0
    captured = capsys.readouterr()
    (notice,) = [line for line in captured.err.splitlines() if line.startswith("device_config: ")]
    assert "needed on each chip" in notice and "runner_type: memory_efficient" in notice
    assert notice in last_json(captured.out)["notices"]
    assert main(["validate", str(path), "--chip", "n150"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"tiermesh: {notice.replace('wormhole', 'n150')}"
    assert main(["validate", str(path), "--set", "backend=emulator"]) == 0
    assert "needed on each chip" not in capsys.readouterr().err, "an emulated chip has the memory of its host"


def test_validate_checks_the_mesh_against_its_descriptor(
    job_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    descriptor = tmp_path / "box.textproto"
    descriptor.write_text(
        'mesh_descriptors { name: "M0" arch: WORMHOLE_B0 device_topology { dims: [ 1, 2 ] } '
        "host_topology { dims: [ 1, 1 ] } channels { count: 2 } } "
        'top_level_instance { mesh { mesh_descriptor: "M0" mesh_id: 0 } }'
    )
    monkeypatch.setenv("TT_MESH_GRAPH_DESC_PATH", str(descriptor))
    ddp = ["--set", "device_config.enable_ddp=true", "--set", "training_config.batch_size=8"]
    fits = ["validate", str(job_file), *ddp, "--set", "device_config.mesh_shape=[1, 2]", "--json"]
    assert main(fits) == 0
    assert last_json(capsys.readouterr().out)["mesh_graph_descriptor"] == str(descriptor)
    assert main(["validate", str(job_file), *ddp, "--set", "device_config.mesh_shape=[1, 4]"]) == 2
    assert "device_topology [1, 2]; opening it would hang" in capsys.readouterr().err
    monkeypatch.setenv("TT_MESH_GRAPH_DESC_PATH", "elsewhere.textproto")
    assert main(fits) == 2
    assert f"no such file (tried {Path.cwd() / 'elsewhere.textproto'})" in capsys.readouterr().err
