"""A worker refuses a job that its chips certainly can't hold, before it allocates anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from compute.chip_memory import ChipMemoryShort, check_chip_memory
from compute.job_on_mesh import JobOnMesh, JobSettings
from mesh.device import Mesh, open_mesh
from services.config.job import JobConfig
from services.config.job_parts import DataConfig
from services.config.models import GPT2Config
from services.errors import Refused
from services.pipeline.split import StageRun
from services.printable import LINE_CHARACTERS

DATA = {"files": ({"path": "builtin:python-reference", "sha256": "0" * 64},), "vocab_size": 100}


def make_job(blocks: int, **data: Any) -> JobConfig:
    model = GPT2Config(num_heads=16, embedding_dim=2048, num_blocks=blocks, max_sequence_length=1024)
    return JobConfig(model=model, data=DataConfig.model_validate({**DATA, **data}))


@pytest.fixture
def chip() -> Iterator[Mesh]:
    """Open an emulated chip that takes itself for a real one; its allocator has a Wormhole chip's size."""
    with open_mesh((1, 1), backend="emulator", dtype="bfloat16") as mesh:
        mesh.backend = "ttnn"
        yield mesh


def test_a_job_that_is_too_large_is_refused_in_one_line(chip: Mesh) -> None:
    with pytest.raises(Refused) as refused:
        check_chip_memory(make_job(64), chip)
    line = str(refused.value)
    assert len(line) <= LINE_CHARACTERS and "\n" not in line
    assert line.startswith("device_config: ")
    assert "12.9 GB of this worker's emulator" in line
    assert "write for example transformer_config.runner_type: memory_efficient" in line


def test_a_job_that_may_fit_is_tried(chip: Mesh) -> None:
    check_chip_memory(make_job(2), chip)


def make_pipeline(blocks: tuple[int, ...]) -> JobConfig:
    fields = make_job(sum(blocks)).model_dump() | {"num_workers": len(blocks)}
    return JobConfig.model_validate(fields | {"pipeline": {"blocks_per_stage": blocks}})


def test_a_submesh_for_each_stage_must_hold_the_largest_stage(chip: Mesh) -> None:
    even, uneven = make_pipeline((16,) * 4), make_pipeline((1, 61, 1, 1))
    with pytest.raises(Refused, match="needed on each chip at tt_train_nano_gpt's peak"):
        check_chip_memory(even, chip)
    chip.shape = (4, 1)
    check_chip_memory(even, chip)
    with pytest.raises(Refused, match="needed on each chip at stage 1's peak"):
        check_chip_memory(uneven, chip)


def test_stages_that_share_a_mesh_must_fit_it_together(chip: Mesh) -> None:
    config = make_pipeline((16,) * 4)
    check_chip_memory(config, chip, StageRun(1, 1))
    with pytest.raises(ChipMemoryShort) as short:
        check_chip_memory(config, chip, StageRun(1, 3))
    assert "for stages 1-3 at once" in str(short.value) and "more workers" in str(short.value)
    chip.shape = (3, 1)
    check_chip_memory(config, chip, StageRun(1, 3))


def test_what_the_config_does_not_tell_is_tried(chip: Mesh) -> None:
    check_chip_memory(make_job(64, vocab_size=None), chip)


def test_an_emulated_chip_has_the_memory_of_its_host() -> None:
    with open_mesh((1, 1), backend="emulator") as mesh:
        check_chip_memory(make_job(64), mesh)


def test_the_builder_frees_the_mesh_of_a_refused_job(chip: Mesh) -> None:
    with pytest.raises(Refused, match="needed on each chip"):
        JobOnMesh.build(
            JobSettings(make_job(64), None),
            chip,
            make_step=lambda *_, **__: pytest.fail("the step was made"),
            pass_ended=lambda ended: None,
            on_non_finite=lambda index, name: None,
        )
    open_mesh((1, 1), backend="emulator").close()
