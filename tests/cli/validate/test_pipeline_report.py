"""What `tiermesh validate` says of pipelines beforehand, for tt-train's large models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from services.config.paths import REPOSITORY_ROOT

GALAXY_CHIP_BYTES = 12.9e9


def write_job(folder: Path, model: str, hosts: str, mesh: list[int], **training: Any) -> Path:
    path = folder / "job.yaml"
    configs = REPOSITORY_ROOT / "configs"
    document = {
        "training_config": {
            "model_config": str(configs / "model_configs" / f"{model}.yaml"),
            "multihost_config": str(configs / "multihost_configs" / f"{hosts}.yaml"),
            "data_path": "builtin:python-reference",
            "vocabulary": "config",
            "batch_size": 1,
            "gradient_accumulation_steps": 8,
            **training,
        },
        "device_config": {"enable_tp": True, "mesh_shape": mesh},
    }
    path.write_text(json.dumps(document))
    return path


def validated(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    """Return the result and the text of a command that succeeds."""
    assert main(["validate", *words, "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out.splitlines()[-1])
    assert isinstance(result, dict)
    assert main(["validate", "--long", *words]) == 0
    return result, capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "hosts", "mesh", "stages", "parameters"),
    [
        ("llama8b_efficient", "4worker_32block_pp_fabric", [1, 8], 4, 8_028_164_096),
        ("llama70b", "16worker_80block_pp_fabric", [1, 8], 16, 57_463_283_712),
        ("llama405b", "16worker_126block_pp_fabric", [1, 8], 16, 344_037_736_448),
    ],
)
def test_the_sizes_of_tt_trains_pipelines_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, hosts: str, mesh: list[int], stages: int,
    parameters: int,
) -> None:  # fmt: skip
    result, text = validated(capsys, str(write_job(tmp_path, model, hosts, mesh)), "--chip", "galaxy")
    pipeline = result["pipeline"]
    assert len(pipeline["stages"]) == stages and pipeline["pipelines"] == 1
    assert sum(each["parameters"] for each in pipeline["stages"]) == result["parameters"]["total"]
    assert result["parameters"]["total"] == parameters
    assert pipeline["bubble"] == pytest.approx((stages - 1) / (8 + stages - 1), rel=0.02)
    assert [each["in_flight"] for each in pipeline["stages"]] == [
        min(8, 2 * (stages - stage) - 1) for stage in range(stages)
    ]
    assert pipeline["largest_stage_bytes"] < GALAXY_CHIP_BYTES
    assert [each["sender"] for each in pipeline["links"]] == ["stage", "next stage"]
    assert f"pipelines: 1 of {stages} stages, 8 micro-batches each in a step; schedule 1f1b\n" in text
    assert f"bubble: {pipeline['bubble']:.1%} with equal time for each block, " in text
    assert "largest" in text and "bytes between stages in a step" in text
    assert result["device_memory"]["total_bytes"] == pipeline["largest_stage_bytes"]
    assert result["device_memory"]["stage"] == pipeline["largest_stage"]
    assert f"memory of a chip of stage {pipeline['largest_stage']}: " in text
    assert not any("stage" in notice for notice in result["notices"])
    worker = next(each for each in result["host_memory"] if each["role"] == "worker")
    most = max(each["parameters"] for each in pipeline["stages"])
    copies = 5  # of its stage's part alone: weights, a sum, and three of subtrees
    assert copies * 4 * most < worker["memory_bytes"] < 2 * copies * 4 * most
    gradients, weights = result["links"][:2]
    assert gradients["total_bytes"] == weights["total_bytes"] == 4 * parameters
    assert gradients["links"] == stages


def test_a_stage_that_cannot_fit_is_refused_with_what_to_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_job(
        tmp_path, "llama70b", "4worker_80block_pp_fabric", [1, 8], gradient_accumulation_steps=64
    )
    assert main(["validate", str(path), "--chip", "galaxy", "--set", "runner_type=default"]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "device_config: " in line and "needed on each chip at stage 0's peak" in line
    assert "write for example" in line or "or more stages" in line
    result, _ = validated(capsys, str(path), "--set", "runner_type=default", "--set", "backend=ttnn")
    assert any("at stage 0's peak" in notice for notice in result["notices"])


def test_stages_of_an_unknown_vocabulary_have_no_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus.txt").write_text("abc " * 1000)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordLevel"}}))
    path = tmp_path / "job.yaml"
    path.write_text(
        "training_config: {data_path: corpus.txt, tokenizer_type: bpe, tokenizer_path: tokenizer.json}\n"
        "transformer_config: {num_blocks: 5}\n"
        "multihost_config: {enabled: true, num_workers: 2, pipeline_parallel_config: {blocks_per_rank: auto}}\n"
    )
    result, text = validated(capsys, str(path))
    assert [each["blocks"] for each in result["pipeline"]["stages"]] == [[[0, 2]], [[3, 4]]]
    assert result["pipeline"]["largest_stage"] is None and "known to workers only" in text


def test_an_own_model_has_stages_without_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "training_config: {data_path: builtin:python-reference, gradient_accumulation_steps: 4}\n"
        "transformer_config: {model_type: 'mixer:Mixer', num_blocks: 5}\n"
        "multihost_config: {enabled: true, num_workers: 2, pipeline_parallel_config: {blocks_per_rank: auto}}\n"
    )
    result, text = validated(capsys, str(path))
    assert [each["blocks"] for each in result["pipeline"]["stages"]] == [[[0, 2]], [[3, 4]]]
    assert result["pipeline"]["bubble"] == pytest.approx(1 / 6, abs=1e-4)  # of 3 and 2 blocks
    assert result["pipeline"]["bubble_with_projection"] is None and "known to workers only" in text
