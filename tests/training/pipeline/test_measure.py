"""Times of blocks are those of their ranges less what borders take; ranges run on a mesh as a stage's would."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mesh.device import open_mesh
from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig
from services.config.models import GPT2Config, LlamaConfig
from services.errors import Failed
from services.pipeline.split import BlockRange
from services.sizing.measured_split import MeasuredBalance, PassTime
from training.parameter_placement import choose_axes
from training.pipeline.measure import (
    WARM_UP_PASSES,
    MeasuredRange,
    RangeOpener,
    derive_block_times,
    plan_ranges,
    time_ranges,
)

TEXT = "".join(f"{number} times {number} is {number * number}.\n" for number in range(60))


class PacedRange:
    """A range whose passes take known times of a clock that only they advance. The first and one later are slow."""

    def __init__(self, clock: list[float], seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._passes = 0

    def forward(self) -> None:
        self._passes += 1
        self._clock[0] += self._seconds + self._extra_seconds

    def backward(self) -> None:
        self._clock[0] += 2 * self._seconds + self._extra_seconds

    @property
    def _extra_seconds(self) -> float:
        return 100.0 if self._passes <= WARM_UP_PASSES or self._passes == WARM_UP_PASSES + 2 else 0.0


def measure_paced(
    blocks: list[float], border: float, stages: int, *, equal: bool
) -> dict[BlockRange, PassTime]:
    clock, on_mesh = [0.0], [0]

    @contextmanager
    def open_range(each: BlockRange) -> Iterator[MeasuredRange]:
        on_mesh[0] += 1
        assert on_mesh[0] == 1 and not each.is_whole
        yield PacedRange(clock, border + sum(blocks[each.first : each.stop]))
        on_mesh[0] -= 1

    ranges = plan_ranges(len(blocks), stages, equal=equal)
    return time_ranges(ranges, open_range, passes=3, before_pass=lambda each: None, clock=lambda: clock[0])


def make_job(blocks: int, stages: tuple[int, ...]) -> JobConfig:
    model = GPT2Config(num_blocks=blocks, num_heads=2, embedding_dim=64, max_sequence_length=32)
    data = DataConfig.model_validate({"files": ({"path": "builtin:python-reference", "sha256": "0" * 64},)})
    return JobConfig.model_validate(
        {"model": model, "data": data, "num_workers": len(stages), "gradient_accumulation_steps": 8,
         "pipeline": {"blocks_per_stage": stages}}
    )  # fmt: skip


@pytest.mark.parametrize("equal", [True, False])
def test_paced_blocks_give_their_times_and_the_exact_split(equal: bool) -> None:
    paces = [1.5, *[1.0] * 6, 4.0]
    times = derive_block_times(measure_paced(paces, 0.25, 2, equal=equal))
    assert [each.forward_seconds for each in times.blocks] == paces
    assert [each.backward_seconds for each in times.blocks] == [2 * each for each in paces]
    assert (times.border.forward_seconds, times.border.backward_seconds) == (0.25, 0.5)
    balance = MeasuredBalance(make_job(8, (4, 4)), times, 100, dtype="bfloat16", banks=12)
    assert balance.find() == (5, 3)  # 5.5 and 6, where (4, 4) has 4.5 and 7, and (6, 2) has 6.5 and 5
    assert balance.describe((5, 3)).stage_seconds == (3 * 5.75, 3 * 6.25)


def test_unequal_blocks_are_each_measured() -> None:
    paces = [1.0, 5.0, 2.0, 7.0]
    times = derive_block_times(measure_paced(paces, 0.5, 2, equal=False))
    assert [each.forward_seconds for each in times.blocks] == paces


@pytest.mark.parametrize(
    ("blocks", "stages", "expected"),
    [
        (2, 2, [(0, 1), (1, 2)]),
        (3, 2, [(0, 1), (1, 2), (2, 3), (0, 2)]),
        (3, 3, [(0, 1), (1, 2), (2, 3)]),
        (9, 2, [(0, 1), (1, 2), (8, 9), (1, 3)]),
    ],
)
def test_no_range_is_more_than_a_stage_has(blocks: int, stages: int, expected: list[tuple[int, int]]) -> None:
    assert [(each.first, each.stop) for each in plan_ranges(blocks, stages, equal=True)] == expected


def test_a_border_is_no_longer_than_a_pass_and_no_shorter_than_nothing() -> None:
    one, other, both = BlockRange(0, 1, 3), BlockRange(1, 2, 3), BlockRange(0, 2, 3)
    singles = {one: PassTime(1, 1), other: PassTime(2, 2), BlockRange(2, 3, 3): PassTime(3, 3)}
    times = derive_block_times({**singles, both: PassTime(1.5, 9)})
    assert times.border == PassTime(1, 0)
    assert times.blocks == (PassTime(0, 1), PassTime(1, 2), PassTime(2, 3))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("model", "device"),
    [
        (
            GPT2Config(
                num_heads=2, embedding_dim=64, num_blocks=4, max_sequence_length=32, weight_tying=True
            ),
            DeviceConfig(mesh_shape=(2, 1), enable_ddp=True),
        ),
        (
            LlamaConfig(num_heads=4, num_groups=2, embedding_dim=128, num_blocks=4, max_sequence_length=32),
            DeviceConfig(mesh_shape=(1, 2), enable_tp=True),
        ),
    ],
    ids=["gpt2", "llama"],
)
def test_ranges_of_a_model_are_timed_on_a_mesh(
    model: GPT2Config | LlamaConfig, device: DeviceConfig, dtype: str, tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    file = CorpusFile(path=str(path), sha256=hashlib.sha256(TEXT.encode()).hexdigest())
    config = JobConfig(
        model=model, device=device, data=DataConfig(files=(file,)), batch_size=2, validation_batch_size=4
    )
    with open_mesh(device.mesh_shape, backend="emulator", dtype=dtype, axes=choose_axes(device)) as mesh:
        opener = RangeOpener(config, mesh, None, ())
        ranges = plan_ranges(4, 2, equal=True)
        begun: list[BlockRange] = []
        before = mesh.handle.memory.live_bytes
        times = time_ranges(ranges, opener.open, passes=1, before_pass=begun.append)
        assert mesh.handle.memory.live_bytes == before, "each range is freed"
    assert tuple(times) == ranges and len(begun) == len(ranges) * (WARM_UP_PASSES + 1)
    assert all(each.forward_seconds > 0 and each.backward_seconds > 0 for each in times.values())


def test_the_limit_ends_the_measurement_and_frees_the_range() -> None:
    freed = []

    @contextmanager
    def open_range(each: BlockRange) -> Iterator[MeasuredRange]:
        try:
            yield PacedRange([0.0], 1.0)
        finally:
            freed.append(each)

    def stop(each: BlockRange) -> None:
        raise Failed("over")

    ranges = plan_ranges(4, 2, equal=True)
    with pytest.raises(Failed, match="over"):
        time_ranges(ranges, open_range, passes=1, before_pass=stop)
    assert freed == [ranges[0]]
