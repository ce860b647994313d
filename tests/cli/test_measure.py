"""Output, exit codes and limits of `tiermesh measure`, on the emulator."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import yaml

import cli.measure.command
import mesh.memory
import training.pipeline.measure
from cli.main import main
from mesh.device import open_mesh
from mesh.memory import ChipMemory
from services.pipeline.split import BlockRange

JOB: dict[str, Any] = {
    "training_config": {
        "model_type": "gpt2",
        "data_path": "text.txt",
        "tokenizer_type": "char",
        "batch_size": 2,
        "max_steps": 2,
        "gradient_accumulation_steps": 8,
    },
    "transformer_config": {
        "num_heads": 2,
        "embedding_dim": 64,
        "num_blocks": 6,
        "max_sequence_length": 32,
    },
    "device_config": {"backend": "emulator", "mesh_shape": [1, 1]},
    "multihost_config": {
        "enabled": True,
        "num_workers": 2,
        "pipeline_parallel_config": {"blocks_per_rank": {0: 3, 1: 3}},
    },
}
TEXT = "".join(f"{number} times {number} is {number * number}.\n" for number in range(60))


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    return str(tmp_path / "job.yaml")


class _Paced:
    """A range whose passes take one second of a clock for each block, and six for the last one."""

    def __init__(self, blocks: BlockRange, clock: list[float]) -> None:
        self._seconds = len(blocks) + 5.0 * blocks.is_last
        self._clock = clock

    def forward(self) -> None:
        self._clock[0] += self._seconds

    def backward(self) -> None:
        self._clock[0] += self._seconds


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let passes take known times of a clock that nothing else advances."""
    clock = [0.0]

    @contextmanager
    def open_range(self: object, blocks: BlockRange) -> Iterator[_Paced]:
        yield _Paced(blocks, clock)

    monkeypatch.setattr(training.pipeline.measure.RangeOpener, "open", open_range)
    defaults = training.pipeline.measure.time_ranges.__kwdefaults__
    monkeypatch.setitem(defaults, "clock", lambda: clock[0])


def test_the_line_to_paste_balances_paced_stages(
    job: str, paced: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["measure", job]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mesh [1, 1] on emulator: emulator, float32; median of 5 passes of a micro-batch"
    assert "  block 0            1000.00 ms   1000.00 ms" in lines
    assert "  block 5            6000.00 ms   6000.00 ms" in lines
    assert lines[-1] == "    blocks_per_rank: {0: 5, 1: 1}"
    pasted = f"multihost_config.pipeline_parallel_config.{lines[-1].strip().replace(': {', '={', 1)}"
    assert main(["validate", job, pasted]) == 0


def test_the_result_for_machines(job: str, paced: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", job, "--json", "--passes", "1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    assert [(each["first"], each["last"]) for each in result["ranges"]] == [(0, 0), (1, 1), (5, 5), (1, 2)]
    assert [each["blocks"] for each in result["balanced"]["stages"]] == [5, 1]
    assert [each["seconds"] for each in result["balanced"]["stages"]] == [10, 12]
    assert [each["seconds"] for each in result["present"]["stages"]] == [6, 16]
    assert result["balanced"]["bubble"] < result["present"]["bubble"]
    assert all(each["memory_bytes"] > 0 for each in result["balanced"]["stages"])


@pytest.mark.parametrize(
    "settings",
    [
        ("multihost_config.enabled=false",),
        ("multihost_config.pipeline_parallel_config.blocks_per_rank={0: 6}", "num_workers=1"),
    ],
)
def test_a_model_without_a_pipeline_has_times_and_no_split(
    job: str, paced: None, settings: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["measure", job, *settings, "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert "balanced" not in result and "balanced split" not in captured.err
    assert len(result["blocks"]) == 6 and result["batch_size"] == 2
    assert result["model"] == {"forward_seconds": 11.0, "backward_seconds": 11.0}
    assert "  the whole model    11000.00 ms  11000.00 ms" in captured.err.splitlines()


def test_validate_reads_the_result(
    job: str, paced: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = "multihost_config.enabled=false"
    assert main(["measure", job, alone, "--json"]) == 0
    (tmp_path / "measured.json").write_text(capsys.readouterr().out)
    link = ["--link", "10G", "--measured", str(tmp_path / "measured.json")]
    assert main(["validate", job, alone, *link, "--json"]) == 0
    time = json.loads(capsys.readouterr().out.splitlines()[-1])["time"]
    assert time["computing_seconds"] == 8 * 22.0 and time["computing_from"] == "measured on emulator"


@pytest.mark.parametrize("has_pipeline", [True, False])
def test_blocks_on_the_emulator_are_measured_and_the_mesh_is_closed(
    job: str, has_pipeline: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["batch_size=1", f"multihost_config.enabled={str(has_pipeline).lower()}"]
    assert main(["measure", job, "--passes", "1", *settings, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert all(each["forward_seconds"] > 0 < each["backward_seconds"] for each in result["ranges"])
    assert len(result["blocks"]) == 6
    assert sum(each["blocks"] for each in result.get("balanced", {}).get("stages", [])) == 6 * has_pipeline
    open_mesh((1, 1), backend="emulator").close()


def test_each_block_of_an_own_model_is_measured(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "measured_model.py").write_text(
        "from services.config.models import GPT2Config\n"
        "from training.models.gpt2 import GPT2\n\n\n"
        "def make(options, vocabulary, mesh, blocks=None):\n"
        "    return GPT2(GPT2Config(**options, num_heads=2, embedding_dim=64), vocabulary, mesh, blocks)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    config = {**JOB, "transformer_config": {"num_blocks": 4, "max_sequence_length": 32}}
    config["training_config"] = {**JOB["training_config"], "model_type": "measured_model:make"}
    Path(job).write_text(yaml.safe_dump(config))
    arguments = [
        "measure",
        job,
        "--passes",
        "1",
        "multihost_config.pipeline_parallel_config.blocks_per_rank={0: 2, 1: 2}",
    ]
    assert main([*arguments, "--allow-models", "measured_model", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    spans = [(each["first"], each["last"]) for each in result["ranges"]]
    assert spans == [(0, 0), (1, 1), (2, 2), (3, 3), (1, 2)]
    assert {each["memory_bytes"] for each in result["balanced"]["stages"]} == {None}
    assert main(arguments) == 2
    assert "--allow-models measured_model" in capsys.readouterr().err
    sys.modules.pop("measured_model", None)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["data_path=missing.txt"], "missing.txt"),
        (["--passes", "0"], "--passes"),
        (["--limit-seconds", "nan"], "--limit-seconds"),
    ],
)
def test_wrong_input_is_refused(
    job: str, settings: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["measure", job, *settings]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert words in last and len(last) <= 310


@pytest.mark.parametrize(
    ("chip_bytes", "words"),
    [(1 << 18, "needed on each chip for block 0 alone"), (4_000_000, "no split of 6 blocks over 2 stages")],
)
def test_a_chip_without_room_is_refused(
    job: str,
    chip_bytes: int,
    words: str,
    paced: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(mesh.memory, "find_chip_limit", lambda mesh: ChipMemory(chip_bytes, 0, 12))
    assert main(["measure", job]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line and len(line) <= 310


def test_a_device_error_is_one_line(
    job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: object) -> None:
        raise RuntimeError("Out of Memory: Not enough space to allocate 1 B DRAM buffer across 12 banks")

    monkeypatch.setattr(training.pipeline.measure._RangeOnMesh, "forward", fail)
    assert main(["measure", job]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tiermesh: measure: a pass of block 0: ")
    open_mesh((1, 1), backend="emulator").close()


def test_the_limit_is_kept_between_passes(
    job: str, paced: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = iter(range(0, 10000, 4))
    monkeypatch.setattr("cli.measure.command.time.monotonic", lambda: next(seconds))
    assert main(["measure", job, "--limit-seconds", "20"]) == 1
    assert "20 s are over before a pass of block" in capsys.readouterr().err


def test_a_pass_that_hangs_is_left_behind(
    job: str, paced: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hangs, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def hang(self: object) -> None:
        hangs.set()
        goes_on.wait(60)
        ended.set()

    class Outcomes(SimpleQueue[Any]):
        """Queue whose limit begins with the pass: the mesh may be opened slowly before."""

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            assert hangs.wait(60)
            return super().get(block, timeout)

    monkeypatch.setattr(_Paced, "forward", hang)
    monkeypatch.setattr(cli.measure.command, "SimpleQueue", Outcomes)
    monkeypatch.setattr(cli.measure.command, "_GRACE_SECONDS", -59.9)
    assert main(["measure", job, "--limit-seconds", "60"]) == 1
    assert "no end of a pass of block 0 after 0.1 s" in capsys.readouterr().err
    goes_on.set()
    (thread,) = [each for each in threading.enumerate() if each.name == "measure"]
    thread.join(60)
    assert ended.is_set()
