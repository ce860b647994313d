"""Every parallel strategy gives one device's loss and gradients: max|a-b| <= 1e-5 max|b| for each tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mesh.axes import Axes
from mesh.device import Mesh
from mesh.placement import REPLICATED
from mesh.transfer import download
from services.config.models import GPT2Config, LlamaConfig
from services.errors import Refused
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Tensor
from training.models.build import (
    build_model,
    load_parameter,
)
from training.models.initialise import (
    draw_initial_value,
)
from training.parameter_placement import from_mesh

VOCABULARY, TOKENS, SEQUENCES = 75, 32, 8
OPTIONS: list[dict[str, Any]] = [
    {},
    {"bias": False, "weight_tying": True, "activation": "gelu_tanh", "positional_embedding_type": "fixed"},
    {"num_heads": 8},  # heads of less than a tile
    {"runner_type": "memory_efficient"},
    {"model_type": "llama"},
    {"model_type": "llama", "num_groups": 4, "weight_tying": True, "runner_type": "memory_efficient"},
    {
        "model_type": "llama",
        "intermediate_dim": 150,
        "runner_type": "memory_efficient",
    },  # padded on each device
]
STRATEGIES: dict[str, tuple[tuple[int, int], Axes]] = {
    "ddp 1x8": ((1, 8), Axes(data=1)),
    "ddp 8x1": ((8, 1), Axes(data=0)),
    "tp 1x2": ((1, 2), Axes(tensor=1)),
    "tp 4x1": ((4, 1), Axes(tensor=0)),
    "tp 1x8": ((1, 8), Axes(tensor=1)),
    "fsdp 1x2": ((1, 2), Axes(data=1, shard_parameters=True)),
    "fsdp 4x1": ((4, 1), Axes(data=0, shard_parameters=True)),
    "ddp x tp 2x4": ((2, 4), Axes(data=0, tensor=1)),
    "tp x ddp 4x2": ((4, 2), Axes(data=1, tensor=0)),
    "fsdp x tp 2x2": ((2, 2), Axes(data=0, tensor=1, shard_parameters=True)),
    "fsdp x tp 2x4": ((2, 4), Axes(data=0, tensor=1, shard_parameters=True)),
}


def make_config(**options: Any) -> GPT2Config | LlamaConfig:
    common = {"num_blocks": 2, "max_sequence_length": TOKENS, "dropout_prob": 0.0}
    if options.get("model_type") == "llama":
        return LlamaConfig(
            **{
                "num_heads": 8,
                "num_groups": 8,
                "embedding_dim": 256,
                "intermediate_dim": 128,
                **common,
                **options,
            }
        )
    return GPT2Config(**{"num_heads": 4, "embedding_dim": 128, **common, **options})


def draw_batch() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(3)
    ids = random.integers(0, VOCABULARY, (SEQUENCES, TOKENS + 1), dtype=np.uint32)
    return ids[:, :-1].copy(), ids[:, 1:].copy()


def run_step(
    mesh: Mesh, model_config: GPT2Config | LlamaConfig, dropout: Callable[[str], int] | None = None
) -> dict[str, Any]:
    """Return the loss of every row and the gradient of every parameter, by its name."""
    model = build_model(model_config, VOCABULARY, mesh)
    for parameter in model.parameters():
        load_parameter(mesh, parameter, draw_initial_value(parameter, 11))
    tape = Tape(mesh, dropout_seed=dropout)
    inputs, targets = draw_batch()
    loss = model.loss(tape, inputs, targets)
    found: dict[str, Any] = {"loss": download(mesh, loss.value, loss.placements).reshape(-1)}

    def take(parameter: Parameter, gradient: Tensor) -> None:
        found[parameter.name] = from_mesh(
            parameter, download(mesh, gradient, parameter.placements), mesh
        ).copy()

    tape.backward(loss, 1 / inputs.size, take)
    assert found.keys() == {"loss"} | {parameter.name for parameter in model.parameters()}
    return found


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_gives_one_device_s_loss_and_gradients(
    open_emulator: Callable[..., Mesh], strategy: str, options: dict[str, Any]
):
    shape, axes = STRATEGIES[strategy]
    model = make_config(**options)
    heads = model.num_groups if isinstance(model, LlamaConfig) else model.num_heads
    if axes.tensor is not None and heads % shape[axes.tensor]:
        pytest.skip(f"{shape[axes.tensor]} devices for {heads} heads; a job's configuration refuses that")
    expected = run_step(open_emulator(), make_config(**options))
    found = run_step(open_emulator(shape, axes=axes), make_config(**options))
    for name, values in expected.items():
        difference = np.abs(found[name] - values).max()
        assert difference <= 1e-5 * np.abs(values).max(), name


def test_tensor_parallel_devices_share_the_large_parameters(open_emulator: Callable[..., Mesh]):
    mesh = open_emulator((2, 4), axes=Axes(data=0, tensor=1, shard_parameters=True))
    model = build_model(make_config(), VOCABULARY, mesh)
    for parameter in model.parameters():
        load_parameter(mesh, parameter, draw_initial_value(parameter, 11))
    shapes = {parameter.name: list(parameter.value.shape) for parameter in model.parameters()}
    assert shapes["token_embedding.weight"] == [1, 1, 32, 64]  # 75 tokens in 4 tiles; 128 over 2
    assert shapes["blocks.0.attention.qkv.weight"] == [1, 1, 64, 96]
    assert shapes["blocks.0.attention.qkv.bias"] == [1, 96]
    assert shapes["blocks.0.attention.projection.weight"] == [1, 1, 32, 64]
    assert shapes["blocks.0.attention.projection.bias"] == [1, 128]
    assert shapes["norm.weight"] == [1, 128]


@pytest.mark.parametrize("strategy", ["tp 1x8", "fsdp x tp 2x4"])
def test_padding_of_a_hidden_width_stays_zero(open_emulator: Callable[..., Mesh], strategy: str):
    """Check weights and gradients on the mesh: 150 columns are padded to whole tiles on each device."""
    shape, axes = STRATEGIES[strategy]
    mesh = open_emulator(shape, axes=axes)
    model = build_model(make_config(model_type="llama", intermediate_dim=150), VOCABULARY, mesh)
    for parameter in model.parameters():
        load_parameter(mesh, parameter, draw_initial_value(parameter, 11))
    tape = Tape(mesh)
    inputs, targets = draw_batch()
    checked = []

    def check(parameter: Parameter, gradient: Tensor) -> None:
        if ".feed_forward." not in parameter.name:
            return
        dim = parameter.placements.tensor.dim
        assert dim is not None
        for value in (parameter.value, gradient):
            padding = np.delete(download(mesh, value, parameter.placements), range(150), dim)
            assert padding.size and not padding.any(), parameter.name
            checked.append(parameter.name)

    tape.backward(model.loss(tape, inputs, targets), 1 / inputs.size, check)
    assert len(checked) == 2 * 2 * 3  # values and gradients of gate, up and down in two blocks


def test_heads_that_devices_do_not_divide_are_refused(open_emulator: Callable[..., Mesh]):
    mesh = open_emulator((1, 3), axes=Axes(tensor=1))
    with pytest.raises(Refused, match=r"mesh_shape.*\b3\b.*\b128\b.*blocks\.0"):
        build_model(make_config(), VOCABULARY, mesh)


def derive_seed(site: str) -> int:
    return sum(site.encode())


@pytest.mark.parametrize("strategy", ["ddp 1x8", "fsdp x tp 2x2"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_recomputing_gives_the_same_bits(open_emulator: Callable[..., Mesh], strategy: str, kind: str):
    """Include dropout, whose seeds follow from names."""
    shape, axes = STRATEGIES[strategy]
    found = [
        run_step(
            open_emulator(shape, axes=axes),
            make_config(model_type=kind, dropout_prob=0.2, num_blocks=3, runner_type=runner),
            derive_seed,
        )
        for runner in ("default", "memory_efficient")
    ]
    assert all(np.array_equal(found[1][name], values) for name, values in found[0].items())


@pytest.mark.parametrize("strategy", ["tp 1x2", "ddp x tp 2x4"])
def test_dropout_is_the_same_for_devices_with_the_same_elements(
    open_emulator: Callable[..., Mesh], strategy: str
):
    """Check that copies stay equal: devices that dropped different elements of a copy would diverge."""
    shape, axes = STRATEGIES[strategy]
    mesh = open_emulator(shape, axes=axes)
    dropped = run_step(mesh, make_config(dropout_prob=0.3), derive_seed)
    again = run_step(mesh, make_config(dropout_prob=0.3), derive_seed)
    assert all(np.array_equal(dropped[name], again[name]) for name in dropped)
    without = run_step(mesh, make_config(dropout_prob=0.3))
    assert not np.array_equal(dropped["loss"], without["loss"])


def test_dropout_of_copies_and_of_pieces(open_emulator: Callable[..., Mesh]):
    from mesh.placement import Placements, sharded
    from training.ops.dropout import masked

    mesh = open_emulator((2, 4), axes=Axes(data=0, tensor=1))
    tt = mesh.tt
    ones = tt.ones([1, 1, 32, 256], dtype=mesh.dtype, layout=tt.TILE_LAYOUT, device=mesh.handle)

    def masks(tensor_placement: Any) -> Any:
        value = masked(mesh, ones, Placements(sharded(2), tensor_placement), 0.5, 7)
        return [chip.cpu().to_numpy() for chip in tt.get_device_tensors(value)]

    copies = masks(REPLICATED)
    assert all(np.array_equal(copies[0], one) for one in copies[1:4])
    assert all(np.array_equal(copies[4], one) for one in copies[5:])
    assert not np.array_equal(copies[0], copies[4])
    pieces = masks(sharded(3))
    assert len({one.tobytes() for one in pieces}) == 8
