"""Assignment of strategies to mesh axes, from flags or named axes, and refused meshes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from services.config.device import DeviceConfig
from tests.support.facts import has_facts

Load = Callable[..., Any]
Refuse = Callable[..., str]


@pytest.mark.parametrize(
    ("section", "data_axis", "tensor_axis", "sharded"),
    [
        ({}, None, None, False),
        ({"mesh_shape": [1, 8], "enable_ddp": True}, 1, None, False),
        ({"mesh_shape": [8, 1], "enable_ddp": True}, 0, None, False),
        ({"mesh_shape": [1, 8], "enable_tp": True}, None, 1, False),
        ({"mesh_shape": [8, 1], "enable_tp": True}, None, 0, False),
        ({"mesh_shape": [1, 8], "enable_fsdp": True}, 1, None, True),
        ({"mesh_shape": [2, 4], "enable_ddp": True, "enable_tp": True}, 0, 1, False),
        ({"mesh_shape": [2, 4], "enable_fsdp": True, "enable_tp": True}, 0, 1, True),
        ({"mesh_shape": [[2, 4], ["fsdp", "tp"]]}, 0, 1, True),
        ({"mesh_shape": [[2, 4], ["ddp", "tp"]]}, 0, 1, False),
        ({"mesh_shape": [[2, 4], ["dp", "tp"]]}, 0, 1, False),
        ({"mesh_shape": [[4, 2], ["tp", "data"]]}, 1, 0, False),
        ({"mesh_shape": [[4, 2], ["tp", "fsdp"]], "enable_fsdp": True}, 1, 0, True),
        ({"mesh_shape": [[8, 1], ["fsdp", "tp"]]}, 0, None, True),
        ({"mesh_shape": [[1, 8], ["tp", "fsdp"]]}, 1, None, True),
        ({"mesh_shape": [[1, 8], ["ddp", "tp"]]}, None, 1, False),
        ({"mesh_shape": [[1, 8], ["dp", "ddp"]]}, 1, None, False),
    ],
)
def test_axes(
    load: Load, section: dict[str, Any], data_axis: int | None, tensor_axis: int | None, sharded: bool
) -> None:
    model = {"num_heads": 8, "embedding_dim": 256}
    device = load(training_config={"batch_size": 8}, device_config=section, transformer_config=model)[
        0
    ].device
    assert (device.data_axis, device.tensor_axis, device.shard_parameters) == (
        data_axis,
        tensor_axis,
        sharded,
    )
    for axis, size in ((data_axis, device.data_parallel_size), (tensor_axis, device.tensor_parallel_size)):
        assert size == (1 if axis is None else device.mesh_shape[axis])


RULE = "the number of parallelization axes ({}) ... the number of mesh shape dimensions"


@pytest.mark.parametrize(
    ("section", "strategies", "fix"),
    [
        (
            {"mesh_shape": [1, 8]},
            0,
            "enable_ddp: true ... enable_fsdp ... enable_tp ... mesh_shape: [1, 1]",
        ),
        ({"enable_ddp": True}, 1, "set enable_ddp: false ... mesh_shape: [1, 8]"),
        ({"enable_tp": True}, 1, "set enable_tp: false ... mesh_shape: [1, 8]"),
        (
            {"enable_ddp": True, "enable_tp": True},
            2,
            "enable_ddp: false ... enable_tp: false ... mesh_shape: [2",
        ),
        (
            {"mesh_shape": [1, 8], "enable_ddp": True, "enable_tp": True},
            2,
            "set enable_tp: false",
        ),
        ({"mesh_shape": [4, 8], "enable_ddp": True}, 1, "set enable_tp: true ... mesh_shape: [1, 32]"),
        ({"mesh_shape": [4, 8], "enable_tp": True}, 1, "set enable_ddp: true ... mesh_shape: [1, 32]"),
        (
            {"mesh_shape": [2, 4]},
            0,
            "enable_ddp: true ... enable_tp: true ... mesh_shape: [1, 8]",
        ),
        (
            {"mesh_shape": [[1, 8], ["tp", "fsdp"]], "enable_tp": True},
            2,
            "set enable_tp: false",
        ),
    ],
)
def test_the_numbers_of_strategies_and_dimensions_must_be_equal(
    refused: Refuse, section: dict[str, Any], strategies: int, fix: str
) -> None:
    line = refused(device_config=section)
    assert line.startswith("device_config.mesh_shape: [")
    assert has_facts(line, RULE.format(strategies))
    assert has_facts(line, fix)


@pytest.mark.parametrize(
    ("section", "facts"),
    [
        ({"mesh_shape": [1, 8], "enable_ddp": True, "enable_fsdp": True},
         "device_config.enable_fsdp: true given ... enable_ddp: true"),
        ({"mesh_shape": [[1, 8], ["tp", "fsdp"]], "enable_ddp": True}, "device_config.enable_fsdp: true given"),
        ({"mesh_shape": [[2, 4], ["ddp", "fsdp"]]}, "device_config.enable_fsdp: true given"),
        ({"mesh_shape": [[2, 4], ["dp", "ddp"]]}, "device_config.mesh_shape: ... data parallel"),
        ({"mesh_shape": [[2, 4], ["tp", "tp"]]}, "device_config.mesh_shape: ... tensor parallel"),
        ({"mesh_shape": [[2, 4], ["ddp"]]}, "axes ['ddp'] given, expected ... ddp"),
        ({"mesh_shape": [[2, 4], [[], "tp"]]}, "device_config.mesh_shape: axes"),
        ({"mesh_shape": [[2, 4, 1], ["ddp", "tp"]]}, "expected [rows, columns]"),
        ({"mesh_shape": [1, 4096], "enable_ddp": True}, "1024"),
        ({"threads": 0}, "device_config.threads: 0 given, expected at least 1"),
        ({"trace": 1}, "device_config.trace: 1 given, expected true or false"),
        ({"trace": True}, "device_config.trace: true given with transformer_config.dropout_prob 0.2"),
    ],
)  # fmt: skip
def test_a_bad_mesh_is_refused(refused: Refuse, section: dict[str, Any], facts: str) -> None:
    assert has_facts(refused(device_config=section), facts)


def test_threads_and_trace_reach_the_job(load: Load) -> None:
    device = load(device_config={"threads": 2, "trace": True}, transformer_config={"dropout_prob": 0.0})[
        0
    ].device
    assert (device.threads, device.trace) == (2, True)
    assert (DeviceConfig().threads, DeviceConfig().trace) == (1, False)


TENSOR_8 = {"mesh_shape": [1, 8], "enable_tp": True}
LLAMA = {
    "model_type": "llama",
    "num_heads": 8,
    "num_groups": 8,
    "embedding_dim": 512,
    "intermediate_dim": 1024,
}


@pytest.mark.parametrize(
    ("sections", "facts"),
    [
        ({"training_config": {"batch_size": 6}, "device_config": {"mesh_shape": [1, 4], "enable_fsdp": True}},
         "training_config.batch_size: 6 given, expected a multiple of the 4 devices ... "
         "batch_size: 8"),
        ({"device_config": TENSOR_8},
         "transformer_config.num_heads: 6 given, expected a multiple of the 8 devices ... [1, 8] ... "
         "num_heads: 8 ... 2 devices"),
        ({"device_config": TENSOR_8, "transformer_config": {"num_heads": 8, "embedding_dim": 128}},
         "transformer_config.embedding_dim: 128 given, expected a multiple of 256 ... 32 ... 8 devices ... 256"),
        ({"device_config": TENSOR_8, "transformer_config": {**LLAMA, "num_groups": 4}},
         "transformer_config.num_groups: 4 given, expected a multiple of the 8 devices"),
        ({"transformer_config": {"max_sequence_length": 40}},
         "transformer_config.max_sequence_length: 40 given, expected a multiple of 32 ... "
         "max_sequence_length: 64"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_divide_are_refused(refused: Refuse, sections: dict[str, Any], facts: str) -> None:
    assert has_facts(refused(**sections), facts)


def test_sizes_that_divide_are_accepted(load: Load) -> None:
    load(device_config=TENSOR_8, transformer_config=LLAMA)
    load(device_config={"mesh_shape": [1, 2], "enable_tp": True}, training_config={"batch_size": 3})


@pytest.mark.parametrize("width", [1, 1000, 5632, 22016])
def test_hidden_widths_need_not_divide(load: Load, width: int) -> None:
    load(device_config=TENSOR_8, transformer_config={**LLAMA, "intermediate_dim": width})
    hidden = {"hidden_features": [width, 3, width]}
    load(device_config=TENSOR_8, mlp_config=hidden, training_config={"model_type": "mlp"})


@pytest.mark.parametrize("ids", [[0, 1], [0, 1, 2, 2], [0, 1, 2, 3, 4]])
def test_device_ids_that_do_not_make_up_the_mesh_are_refused(refused: Refuse, ids: list[int]) -> None:
    section = {"mesh_shape": [2, 2], "enable_ddp": True, "enable_tp": True, "device_ids": ids}
    message = refused(device_config=section)
    assert has_facts(
        message, "device_config.device_ids: [0, 1 ... given, expected ... 4 chips ... [2, 2] ... []"
    )


def test_device_ids_reach_the_job(load: Load) -> None:
    section = {"mesh_shape": [1, 2], "enable_ddp": True, "device_ids": [3, 1]}
    job, notices = load(device_config=section)
    assert job.device.device_ids == (3, 1)
    assert not notices


@pytest.mark.parametrize(
    ("heads", "mesh", "fix"),
    [
        (6, [1, 8], "num_heads: 8, or use a tensor parallel axis of 2 devices"),
        (12, [1, 32], "num_heads: 32, or use a tensor parallel axis of 4 devices"),
        (3, [1, 8], "num_heads: 8, or use enable_ddp instead of enable_tp"),
    ],
)
def test_heads_that_do_not_divide_have_an_axis_of_the_same_chips(
    refused: Callable[..., str], heads: int, mesh: list[int], fix: str
) -> None:
    line = refused(
        transformer_config={"num_heads": heads, "embedding_dim": 96 * heads},
        device_config={"mesh_shape": mesh, "enable_tp": True},
    )
    assert line.endswith(fix)
