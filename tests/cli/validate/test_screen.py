"""The screen that `tiermesh validate` shows: verdict first, within 24 lines of 80 columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from services.config.paths import REPOSITORY_ROOT
from tests.cli.validate.test_pipeline_report import write_job

DEMO = str(REPOSITORY_ROOT / "configs" / "training_configs" / "demo.yaml")
MODEL = (
    "transformer_config: {num_heads: 16, embedding_dim: 1024, num_blocks: 24, max_sequence_length: 1024}\n"
)


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[list[str], list[str]]:
    """Return the lines of a command that succeeds, and those on standard error."""
    assert main(["validate", *words]) == 0
    captured = capsys.readouterr()
    return captured.out.splitlines(), captured.err.splitlines()


def result_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["validate", *words, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


def test_the_verdict_comes_first_and_all_fits_on_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = shown(capsys, DEMO, "--link", "1G", "--workers", "4")
    assert lines[0].startswith(
        "the config is valid and fits: 19.8 MB needed on each chip, 12.9 GB on a wormhole"
    )
    assert len(lines) <= 22 and max(map(len, lines)) <= 80
    labels = {line[2:19].strip(): line[19:] for line in lines[1:-1]}
    assert labels["model"] == "gpt2, 823,168 parameters"
    assert labels["workers"] == "4: 2 of 4 compute; 3 tiers; a mesh of 1 x 1 each"
    for label in (
        "data",
        "step",
        "job",
        "chip memory",
        "host memory",
        "checkpoints",
        "time of a step",
        "time of the job",
    ):
        assert label in labels


def test_a_pipeline_fits_on_a_screen_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_job(tmp_path, "llama405b", "16worker_126block_pp_fabric", [1, 8])
    lines, _ = shown(capsys, str(path), "--chip", "galaxy", "--link", "10G")
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert any("16 in 1 row: all compute" in line for line in lines)
    assert any("1 of 16 stages" in line for line in lines)


def test_settings_are_shown_with_long_alone(capsys: pytest.CaptureFixture[str]) -> None:
    short, _ = shown(capsys, DEMO)
    long, _ = shown(capsys, DEMO, "--long")
    assert short[0] == long[0] and len(long) > 60
    assert "training_config.seed" not in "\n".join(short) and "training_config.seed" in "\n".join(long)
    assert short[-1] == "every setting and figure: --long; times: --link RATE, such as 10G"


def test_idle_workers_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    _, errors = shown(capsys, DEMO, "--workers", "5", "batch_size=60")
    (line,) = [each for each in errors if "micro-batches, so" in each]
    assert line.startswith(
        "a step has 2 micro-batches, so 2 of 5 workers compute; gradient_accumulation_steps: 5"
    )
    _, errors = shown(capsys, DEMO, "--workers", "2")
    assert not any("micro-batch" in each for each in errors)
    result = result_of(capsys, DEMO, "--workers", "5", "batch_size=60")
    assert (result["busy_holders"], result["holders"]) == (2, 5) and line in result["notices"]


@pytest.mark.parametrize(
    ("batch_size", "start"),
    [
        (4, "the config is valid and fits: "),
        (5, "the config is valid, but may not fit: "),
        (6, "the config is valid, but workers will refuse it: "),
    ],
)
def test_what_workers_will_refuse_is_said(
    tmp_path: Path, batch_size: int, start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        f"training_config: {{data_path: builtin:python-reference, batch_size: {batch_size}}}\n{MODEL}"
    )
    lines, _ = shown(capsys, str(path))
    assert lines[0].startswith(start), lines[0]


def test_what_only_workers_know_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "training_config: {data_path: builtin:python-reference}\n"
        "transformer_config: {model_type: 'mixer:Mixer', width: 64}\n"
    )
    lines, _ = shown(capsys, str(path), "--link", "1G")
    assert lines[0] == "the config is valid; whether it fits is known to workers only"
    assert any("unknown: its operations are known to workers only" in line for line in lines)
    lines, _ = shown(capsys, DEMO, "backend=emulator")
    assert lines[0].startswith("the config is valid; it needs ") and "emulated chip" in lines[0]
