"""What is said of a job that is too large for a chip."""

from __future__ import annotations

from typing import Any

import pytest

from mesh.emulator.memory import Memory
from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.job_parts import DataConfig
from services.config.models import GPT2Config
from services.sizing.chips import CHIPS, Chip
from services.sizing.device_memory import estimate_device_memory
from services.sizing.fitting import describe_shortage
from services.sizing.pipeline import size_stages

DATA = DataConfig.model_validate(
    {"files": ({"path": "builtin:python-reference", "sha256": "0" * 64},), "vocab_size": 50257}
)
GPT2_XL = GPT2Config(num_heads=25, embedding_dim=1600, num_blocks=48, max_sequence_length=1024)


def shortage(chip: Chip, **settings: Any) -> str:
    config = JobConfig.model_validate(
        {"model": GPT2_XL, "data": DATA, "validation_batch_size": 8, **settings}
    )
    memory = estimate_device_memory(config, 50257, dtype="bfloat16", banks=chip.banks)
    assert memory is not None and memory.total_bytes > chip.dram_bytes
    return describe_shortage(
        config, memory, dtype="bfloat16", banks=chip.banks, chip=chip.name, chip_bytes=chip.dram_bytes
    )


def test_the_line_names_need_chip_and_a_change_that_fits() -> None:
    line = shortage(CHIPS["n150"], batch_size=8)
    assert "\n" not in line and len(line) <= 300
    assert line.startswith("device_config: ") and "expected at most the 12.9 GB of n150" in line
    assert "write for example transformer_config.runner_type: memory_efficient" in line


def test_data_parallel_jobs_may_shard_instead() -> None:
    device = DeviceConfig(mesh_shape=(1, 8), enable_ddp=True)
    model = GPT2_XL.model_copy(update={"num_blocks": 240, "runner_type": "memory_efficient"})
    line = shortage(CHIPS["n150"], batch_size=8, device=device, model=model)
    assert "enable_fsdp: true in place of enable_ddp" in line


def test_a_job_that_no_change_makes_fit_needs_more_chips() -> None:
    line = shortage(
        CHIPS["n150"],
        batch_size=1,
        validation_batch_size=1,
        model=GPT2_XL.model_copy(update={"num_blocks": 960}),
    )
    assert "use a mesh of more chips" in line


def test_a_stage_may_keep_fewer_micro_batches_in_flight() -> None:
    config = JobConfig.model_validate(
        {"model": GPT2_XL, "data": DATA, "batch_size": 1, "num_workers": 4, "gradient_accumulation_steps": 16,
         "pipeline": {"blocks_per_stage": (12,) * 4}}
    )  # fmt: skip
    first = size_stages(config, 50257, dtype="bfloat16", banks=12)[0].memory
    few = size_stages(config, 50257, dtype="bfloat16", banks=12, worker_stages=4)[0].memory
    assert first is not None and few is not None and few.total_bytes < first.total_bytes
    line = describe_shortage(
        config, first, dtype="bfloat16", banks=12, chip="chip", chip_bytes=few.total_bytes, stage=0
    )
    assert "write for example multihost_config.pipeline_parallel_config.hide_transfers: false" in line
    assert len(line) <= 300


@pytest.mark.parametrize("name", CHIPS)
def test_chips_have_the_memory_that_is_published(name: str) -> None:
    published = 12 if name in ("n150", "n300", "t3k", "galaxy", "wormhole") else 28 if name == "p100" else 32
    assert CHIPS[name].dram_bytes == pytest.approx(published * 2**30, rel=0.01)
    assert CHIPS[name].source


def test_the_emulator_has_a_wormhole_chip_s_memory() -> None:
    view = Memory().describe()
    assert (view.num_banks, view.total_bytes_per_bank) == (CHIPS["n150"].banks, CHIPS["n150"].bank_bytes)
