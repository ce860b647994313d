"""Times that `tiermesh validate --link` says, where it has them from, and what it says of evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from cli.validate.cluster import share_out
from services.config.load import load_job
from services.config.paths import REPOSITORY_ROOT
from services.sizing.step_time import Sharing

DEMO = str(REPOSITORY_ROOT / "configs" / "training_configs" / "demo.yaml")
EMULATED = "device_config.backend=emulator"


def time_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["validate", DEMO, "--json", *words]) == 0
    time: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])["time"]
    return time


def notices_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["validate", DEMO, *words]) == 0
    return capsys.readouterr().err.splitlines()


def write_measured(folder: Path, **changes: Any) -> Path:
    seconds = {"forward_seconds": 1.0, "backward_seconds": 2.0}
    found = {
        "mesh_shape": [1, 1],
        "arch": "wormhole_b0",
        "batch_size": 12,
        "blocks": [seconds] * 4,
        "border": seconds,
    }
    path = folder / "measured.json"
    path.write_text(json.dumps(found | changes))
    return path


@pytest.mark.parametrize(
    ("text", "bits"), [("10G", 10e9), ("2.5 Gbit/s", 2.5e9), ("940M", 940e6), ("1e6", None)]
)
def test_rates_of_links(text: str, bits: float | None, capsys: pytest.CaptureFixture[str]) -> None:
    if bits is not None:
        assert time_of(capsys, "--link", text)["link_bits_per_second"] == bits
    else:
        assert main(["validate", DEMO, "--link", text]) == 2
        assert "expected bits a second such as 10G" in capsys.readouterr().err


def test_without_a_link_there_is_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", DEMO, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["time"] is None


def test_computing_takes_its_share_of_the_peak(capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = (time_of(capsys, "--link", "10G", "--mfu", mfu) for mfu in ("0.1", "0.4"))
    assert slow["computing_seconds"] == pytest.approx(4 * fast["computing_seconds"])
    assert slow["computing_from"] == "10 % of the peak of 1 wormhole chip (64 TFLOP/s)"
    assert slow["job_seconds"] > slow["steps_seconds"] == pytest.approx(500 * slow["step_seconds"])
    parts = ("computing", "weights_exposed", "gradients_exposed", "update")
    assert slow["step_seconds"] == pytest.approx(sum(slow[f"{part}_seconds"] for part in parts))


def test_measured_times_take_the_place_of_a_peak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--measured" in time_of(capsys, EMULATED, "--link", "10G")["unknown"]
    time = time_of(capsys, EMULATED, "--link", "10G", "--measured", str(write_measured(tmp_path)))
    assert time["computing_seconds"] == 5 * 3.0  # of 4 blocks and the border, for 1 of 2 micro-batches
    assert time["computing_from"] == "measured on wormhole_b0"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 8}, "batch_size 8 measured, expected 12"),
        ({"mesh_shape": [1, 8]}, "mesh_shape [1, 8] measured, expected [1, 1]"),
        (
            {"blocks": [{"forward_seconds": 1.0, "backward_seconds": 1.0}]},
            "number of blocks 1 measured, expected 4",
        ),
        ({"blocks": []}, "is no result of tiermesh measure"),
        (
            {"border": {"forward_seconds": float("nan"), "backward_seconds": 1.0}},
            "is no result of tiermesh measure",
        ),
    ],
)
def test_times_of_another_job_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["validate", DEMO, "--link", "10G", "--measured", str(write_measured(tmp_path, **changes))]) == 2
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line and len(line) <= 310


def test_a_file_that_is_no_measurement_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.json"
    for content in ("", "[" * 100_000, "{}", "no json"):
        path.write_text(content)
        assert main(["validate", DEMO, "--link", "10G", "--measured", str(path)]) == 2
        assert "is no result of tiermesh measure" in capsys.readouterr().err
    assert main(["validate", DEMO, "--link", "10G", "--measured", str(tmp_path / "missing")]) == 2
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("micro_batches", "workers", "sharing"),
    [
        (1, 5, Sharing(1, 1, 1)),
        (6, 4, Sharing(2, 3, 3)),
        (96, 5, Sharing(24, 7, 5)),
        (4, 2, Sharing(2, 2, 2)),
    ],
)
def test_micro_batches_are_shared_out_as_the_aggregator_does(
    micro_batches: int, workers: int, sharing: Sharing
) -> None:
    config, _ = load_job(DEMO, ("num_workers=1", f"gradient_accumulation_steps={micro_batches}"))
    assert share_out(config, workers) == sharing


@pytest.mark.parametrize(
    ("settings", "advice", "advised"),
    [
        (
            ["eval_every=10"],
            "10 steps before it; write for example training_config.validation_batches: 2 with eval_every: 18",
            ["validation_batches=2", "eval_every=18"],
        ),
        (
            ["eval_every=5", "validation_batch_size=4"],
            "5 steps before it; write for example training_config.validation_batches: 8, or a larger eval_every",
            ["eval_every=5", "validation_batch_size=4", "validation_batches=8"],
        ),
    ],
)
def test_an_evaluation_that_takes_longer_than_training_is_said(
    settings: list[str], advice: str, advised: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert not any("an evaluation of" in line for line in notices_of(capsys))
    (line,) = [each for each in notices_of(capsys, *settings) if "an evaluation of" in each]
    assert line.endswith(f"times as long as the {advice}")
    assert not any("an evaluation of" in each for each in notices_of(capsys, *advised))
    linked = notices_of(capsys, *settings, "--link", "1M")
    assert not any("an evaluation of" in each for each in linked), (
        "a step that waits for its link takes longer"
    )
