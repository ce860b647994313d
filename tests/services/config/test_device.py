"""Which axis of the mesh carries which strategy: from flags, from named axes, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from services.config.device import DeviceConfig

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


RULE = "expected the number of parallelization axes ({}) to be equal to the number of mesh shape dimensions"


@pytest.mark.parametrize(
    ("section", "strategies", "mend"),
    [
        (
            {"mesh_shape": [1, 8]},
            0,
            "set enable_ddp: true (or enable_fsdp or enable_tp), or mesh_shape: [1, 1]",
        ),
        ({"enable_ddp": True}, 1, "set enable_ddp: false, or mesh_shape: [1, 8]"),
        ({"enable_tp": True}, 1, "set enable_tp: false, or mesh_shape: [1, 8]"),
        (
            {"enable_ddp": True, "enable_tp": True},
            2,
            "set enable_ddp: false and enable_tp: false, or mesh_shape: [2",
        ),
        (
            {"mesh_shape": [1, 8], "enable_ddp": True, "enable_tp": True},
            2,
            "set enable_tp: false, or give a mesh of",
        ),
        ({"mesh_shape": [4, 8], "enable_ddp": True}, 1, "set enable_tp: true too, or mesh_shape: [1, 32]"),
        ({"mesh_shape": [4, 8], "enable_tp": True}, 1, "set enable_ddp: true too, or mesh_shape: [1, 32]"),
        (
            {"mesh_shape": [2, 4]},
            0,
            "set enable_ddp: true and enable_tp: true, or mesh_shape: [1, 8] with one",
        ),
        (
            {"mesh_shape": [[1, 8], ["tp", "fsdp"]], "enable_tp": True},
            2,
            "set enable_tp: false, or give a mesh of",
        ),
    ],
)
def test_strategies_and_dimensions_must_be_as_many(
    refused: Refuse, section: dict[str, Any], strategies: int, mend: str
) -> None:
    line = refused(device_config=section)
    assert line.startswith("device_config.mesh_shape: [")
    assert RULE.format(strategies) in line
    assert mend in line


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ({"mesh_shape": [1, 8], "enable_ddp": True, "enable_fsdp": True},
         "device_config.enable_fsdp: true given beside enable_ddp: true, expected one of them"),
        ({"mesh_shape": [[1, 8], ["tp", "fsdp"]], "enable_ddp": True}, "device_config.enable_fsdp: true given beside"),
        ({"mesh_shape": [[2, 4], ["ddp", "fsdp"]]}, "device_config.enable_fsdp: true given beside"),
        ({"mesh_shape": [[2, 4], ["dp", "ddp"]]}, "device_config.mesh_shape: both axes are data parallel"),
        ({"mesh_shape": [[2, 4], ["tp", "tp"]]}, "device_config.mesh_shape: both axes are tensor parallel"),
        ({"mesh_shape": [[2, 4], ["ddp"]]}, 'axes ["ddp"] given, expected two names'),
        ({"mesh_shape": [[2, 4], [[], "tp"]]}, "expected two names"),
        ({"mesh_shape": [[2, 4, 1], ["ddp", "tp"]]}, "expected [rows, columns]"),
        ({"mesh_shape": [1, 4096], "enable_ddp": True}, "each from 1 to 1024"),
        ({"threads": 0}, "device_config.threads: 0 given, expected at least 1"),
        ({"trace": 1}, "device_config.trace: 1 given, expected true or false"),
        ({"trace": True}, "device_config.trace: true given with transformer_config.dropout_prob 0.2, expected no"),
    ],
)  # fmt: skip
def test_a_bad_mesh_is_refused(refused: Refuse, section: dict[str, Any], line: str) -> None:
    assert line.replace('["ddp"]', "['ddp']") in refused(device_config=section)


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
    ("sections", "line"),
    [
        ({"training_config": {"batch_size": 6}, "device_config": {"mesh_shape": [1, 4], "enable_fsdp": True}},
         "training_config.batch_size: 6 given, expected a multiple of the 4 devices that share a batch; write for "
         "example batch_size: 8"),
        ({"training_config": {"validation_batch_size": 3}, "device_config": {"mesh_shape": [1, 2], "enable_ddp": True}},
         "training_config.validation_batch_size: 3 given"),
        ({"device_config": TENSOR_8},
         "transformer_config.num_heads: 6 given, expected a multiple of the 8 devices of tensor parallel "
         "(device_config.mesh_shape [1, 8]), as each computes whole heads; write for example num_heads: 8, or use a "
         "tensor parallel axis of 6 devices"),
        ({"device_config": TENSOR_8, "transformer_config": {"num_heads": 8, "embedding_dim": 128}},
         "transformer_config.embedding_dim: 128 given, expected a multiple of 256: whole tiles of 32 on each of the "
         "8 devices of tensor parallel; write for example 256, or a mesh_shape with fewer"),
        ({"device_config": TENSOR_8, "transformer_config": {**LLAMA, "num_groups": 4}},
         "transformer_config.num_groups: 4 given, expected a multiple of the 8 devices of tensor parallel"),
        ({"device_config": TENSOR_8, "transformer_config": {**LLAMA, "intermediate_dim": 1000}},
         "transformer_config.intermediate_dim: 1000 given, expected a multiple of 256"),
        ({"device_config": TENSOR_8, "mlp_config": {"hidden_features": [256, 3, 100]},
          "training_config": {"model_type": "mlp"}},
         "mlp_config.hidden_features[2]: 100 given, expected a multiple of 256"),
        ({"transformer_config": {"max_sequence_length": 40}},
         "transformer_config.max_sequence_length: 40 given, expected a multiple of 32, as the device computes in tiles "
         "of 32 x 32; write for example max_sequence_length: 64"),
    ],
)  # fmt: skip
def test_what_does_not_divide_is_refused(refused: Refuse, sections: dict[str, Any], line: str) -> None:
    assert line in refused(**sections)


def test_what_divides_is_taken(load: Load) -> None:
    load(device_config=TENSOR_8, transformer_config=LLAMA)
    load(
        device_config=TENSOR_8,
        mlp_config={"hidden_features": [256, 3, 512]},
        training_config={"model_type": "mlp"},
    )
    load(device_config={"mesh_shape": [1, 2], "enable_tp": True}, training_config={"batch_size": 3})
