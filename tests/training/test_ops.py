"""Every operation: its value and its gradients, compared with float64 numpy (gradients along random directions)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mesh.device import Mesh
from mesh.transfer import download, upload
from training import ops
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Tensor, Variable
from training.models.build import (
    load_parameter,
)
from training.models.model import constant
from training.models.positions import Rotations, compute_frequencies

Values = dict[str, npt.NDArray[np.float64]]
Forward = Callable[[Tape, dict[str, Parameter]], Variable]
Reference = Callable[[Values], npt.NDArray[np.float64]]

RANDOM = np.random.default_rng(5)
SEED = 0.5
ROWS, WIDTH, TOKENS = 64, 32, 32


def normal(*shape: int) -> npt.NDArray[np.float32]:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def run(mesh: Mesh, forward: Forward, values: dict[str, Any], weights: Any) -> tuple[Any, dict[str, Any]]:
    """Return the operation's value, and the gradients of SEED times the sum of weights * value."""
    parameters = {name: Parameter(name, value.shape, export_name=name) for name, value in values.items()}
    for name, parameter in parameters.items():
        load_parameter(mesh, parameter, values[name])
    tape = Tape(mesh)
    result = forward(tape, parameters)
    value = download(mesh, result.value)
    tt = mesh.tt

    def weigh(seed: float) -> tuple[Any]:
        summand = (seed * weights).astype(np.float32).reshape(value.shape)
        return (upload(mesh, summand, dtype=mesh.dtype, layout=tt.TILE_LAYOUT),)

    loss = result if weights is None else tape.record(None, (result,), weigh)
    gradients: dict[str, Any] = {}

    def take(parameter: Parameter, gradient: Tensor) -> None:
        gradients[parameter.name] = download(mesh, gradient).reshape(parameter.shape).copy()

    tape.backward(loss, SEED, take)
    return value, gradients


def check(
    mesh: Mesh, forward: Forward, reference: Reference, *, is_loss: bool = False, **values: Any
) -> None:
    exact = {name: value.astype(np.float64) for name, value in values.items()}
    expected = reference(exact)
    weights = np.ones(expected.shape) if is_loss else RANDOM.standard_normal(expected.shape)
    value, gradients = run(mesh, forward, values, None if is_loss else weights)
    np.testing.assert_allclose(value.reshape(expected.shape), expected, rtol=2e-5, atol=2e-5)
    assert gradients.keys() == values.keys()
    step = 1e-6
    for name in values:
        size = np.linalg.norm(gradients[name])
        assert size > 0
        for _ in range(4):
            direction = RANDOM.standard_normal(exact[name].shape)
            above = reference({**exact, name: exact[name] + step * direction})
            below = reference({**exact, name: exact[name] - step * direction})
            slope = SEED * float(((above - below) * weights).sum()) / (2 * step)
            found = float((gradients[name].astype(np.float64) * direction).sum())
            assert found == pytest.approx(slope, rel=1e-4, abs=float(1e-4 * size)), name


def exact_gelu(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def tanh_gelu(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = np.exp(x - x.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def causal_mask() -> npt.NDArray[np.float32]:
    return np.triu(np.full((1, 1, TOKENS, TOKENS), -1e9, np.float32), 1)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_linear(mesh: Mesh, biased: bool, transposed: bool):
    values = {"x": normal(ROWS, WIDTH), "w": normal(48, WIDTH) if transposed else normal(WIDTH, 48)}
    if biased:
        values["b"] = normal(48)

    def forward(tape: Tape, of: dict[str, Parameter]) -> Variable:
        return ops.linear(tape, of["x"], of["w"], of.get("b"), transpose_weight=transposed)

    def reference(of: Values) -> npt.NDArray[np.float64]:
        return of["x"] @ (of["w"].T if transposed else of["w"]) + of.get("b", 0.0)

    check(mesh, forward, reference, **values)


def test_embedding(mesh: Mesh):
    ids = RANDOM.integers(0, 37, (2, TOKENS), dtype=np.uint32)
    check(
        mesh,
        lambda tape, of: ops.embedding(tape, ids, of["table"]),
        lambda of: of["table"][ids.astype(np.int64)].reshape(2 * TOKENS, WIDTH),
        table=normal(37, WIDTH),
    )


def test_add(mesh: Mesh):
    check(
        mesh,
        lambda tape, of: ops.add(tape, of["x"], of["y"]),
        lambda of: of["x"] + of["y"],
        x=normal(ROWS, WIDTH),
        y=normal(ROWS, WIDTH),
    )


def test_add_positions(mesh: Mesh):
    check(
        mesh,
        lambda tape, of: ops.add_positions(tape, of["x"], of["positions"]),
        lambda of: of["x"] + np.concatenate([of["positions"]] * (ROWS // TOKENS)),
        x=normal(ROWS, WIDTH),
        positions=normal(TOKENS, WIDTH),
    )


def test_add_fixed_positions(mesh: Mesh):
    fixed = normal(TOKENS, WIDTH)
    positions = constant(mesh, fixed[None, None], mesh.dtype)
    check(
        mesh,
        lambda tape, of: ops.add_positions(tape, of["x"], positions),
        lambda of: of["x"] + np.concatenate([fixed] * (ROWS // TOKENS)),
        x=normal(ROWS, WIDTH),
    )


@pytest.mark.parametrize("biased", [False, True])
def test_layer_norm(mesh: Mesh, biased: bool):
    values = {"x": 2 + 3 * normal(ROWS, WIDTH), "gain": 1 + normal(WIDTH)}
    if biased:
        values["bias"] = normal(WIDTH)

    def reference(of: Values) -> npt.NDArray[np.float64]:
        centred = of["x"] - of["x"].mean(axis=1, keepdims=True)
        variance = (centred**2).mean(axis=1, keepdims=True)
        return centred / np.sqrt(variance + 1e-5) * of["gain"] + of.get("bias", 0.0)

    check(
        mesh, lambda tape, of: ops.layer_norm(tape, of["x"], of["gain"], of.get("bias")), reference, **values
    )


def test_layer_norm_of_another_width_is_an_error(mesh: Mesh):
    with pytest.raises(ValueError, match="width 32"):
        run(
            mesh,
            lambda tape, of: ops.layer_norm(tape, of["x"], of["gain"]),
            {"x": normal(ROWS, WIDTH), "gain": normal(64)},
            1.0,
        )


@pytest.mark.parametrize(("form", "reference"), [(ops.Gelu.EXACT, exact_gelu), (ops.Gelu.TANH, tanh_gelu)])
def test_gelu(mesh: Mesh, form: ops.Gelu, reference: Any):
    check(
        mesh,
        lambda tape, of: ops.gelu(tape, of["x"], form),
        lambda of: reference(of["x"]),
        x=2 * normal(ROWS, WIDTH),
    )


@pytest.mark.parametrize("heads", [1, 2, 4])  # head widths of 64, one tile (32), and half a tile
def test_causal_attention(mesh: Mesh, heads: int):
    width = 64
    mask = constant(mesh, causal_mask(), mesh.dtype)

    def forward(tape: Tape, of: dict[str, Parameter]) -> Variable:
        return ops.causal_attention(tape, of["qkv"], mask, width // heads, 0.0, "site")

    def reference(of: Values) -> npt.NDArray[np.float64]:
        folded = of["qkv"].reshape(2, TOKENS, 3, heads, width // heads)
        q, k, v = (folded[:, :, part].transpose(0, 2, 1, 3) for part in range(3))
        weights = softmax(q @ k.swapaxes(2, 3) / math.sqrt(width // heads) + causal_mask())
        return (weights @ v).transpose(0, 2, 1, 3).reshape(2 * TOKENS, width)

    check(mesh, forward, reference, qkv=normal(2 * TOKENS, 3 * width))


def test_attention_drops_weights_the_same_way_in_both_passes(mesh: Mesh):
    """Fix the mask by the seed: then finite differences of the operation give its gradient."""
    qkv = normal(TOKENS, 3 * WIDTH)
    mask = constant(mesh, causal_mask(), mesh.dtype)
    weights = RANDOM.standard_normal((TOKENS, WIDTH))

    def value_and_gradient(at: Any, seed: int = 9) -> tuple[float, Any]:
        def forward(tape: Tape, of: dict[str, Parameter]) -> Variable:
            tape.dropout_seed = lambda site: seed
            return ops.causal_attention(tape, of["qkv"], mask, WIDTH, 0.4, "site")

        value, gradients = run(mesh, forward, {"qkv": at}, weights)
        return SEED * float((value.reshape(weights.shape) * weights).sum()), gradients["qkv"]

    value, gradient = value_and_gradient(qkv)
    assert value_and_gradient(qkv, seed=10)[0] != value
    direction = normal(*qkv.shape)
    step = np.float32(1e-2)
    slope = (
        value_and_gradient(qkv + step * direction)[0] - value_and_gradient(qkv - step * direction)[0]
    ) / (2 * float(step))
    assert float((gradient * direction).sum()) == pytest.approx(slope, rel=2e-3)


def test_dropout(mesh: Mesh):
    ones = np.ones((ROWS, 1024), np.float32)

    def forward(site: str) -> Forward:
        def run_one(tape: Tape, of: dict[str, Parameter]) -> Variable:
            tape.dropout_seed = {"a": 1, "b": 2}.__getitem__
            return ops.dropout(tape, of["x"], 0.25, site)

        return run_one

    value, gradients = run(mesh, forward("a"), {"x": ones}, ones)
    value = value.reshape(ones.shape)
    assert set(np.unique(value)) == {np.float32(0), np.float32(1 / 0.75)}
    assert (value == 0).mean() == pytest.approx(0.25, abs=0.01)
    np.testing.assert_array_equal(gradients["x"], SEED * value)
    again, _ = run(mesh, forward("a"), {"x": ones}, ones)
    np.testing.assert_array_equal(again.reshape(ones.shape), value)
    other, _ = run(mesh, forward("b"), {"x": ones}, ones)
    assert (other.reshape(ones.shape) != value).mean() == pytest.approx(2 * 0.25 * 0.75, abs=0.02)


def test_no_dropout_without_a_seed_or_a_probability(mesh: Mesh):
    x = constant(mesh, normal(1, 1, ROWS, WIDTH), mesh.dtype)
    assert ops.dropout(Tape(mesh), x, 0.5, "site") is x
    assert ops.dropout(Tape(mesh, dropout_seed=lambda site: 1), x, 0.0, "site") is x


def test_cross_entropy(mesh: Mesh):
    classes = 37
    targets = RANDOM.integers(0, classes, (1, 1, ROWS, 1), dtype=np.uint32)
    tt = mesh.tt
    following = constant(mesh, targets, tt.uint32)
    numbers = constant(mesh, np.arange(classes, dtype=np.uint32).reshape(1, 1, 1, classes), tt.uint32)
    picked = targets.reshape(-1).astype(np.int64)
    check(
        mesh,
        lambda tape, of: ops.cross_entropy(tape, of["logits"], following, numbers),
        lambda of: -np.log(softmax(of["logits"])[np.arange(ROWS), picked]),
        is_loss=True,
        logits=5 * normal(ROWS, classes),
    )


def test_squared_error(mesh: Mesh):
    wanted = normal(ROWS, 5)
    targets = constant(mesh, wanted[None, None], mesh.tt.float32)
    check(
        mesh,
        lambda tape, of: ops.squared_error(tape, of["predictions"], targets),
        lambda of: ((of["predictions"] - wanted) ** 2).mean(axis=1),
        is_loss=True,
        predictions=normal(ROWS, 5),
    )


def test_take_rows(mesh: Mesh):
    values = normal(1, 1, ROWS, WIDTH)
    row = ops.take_rows(Tape(mesh), constant(mesh, values, mesh.dtype), 7, 8)
    np.testing.assert_array_equal(download(mesh, row.value), values[:, :, 7:8])


def test_relu(mesh: Mesh):
    x = normal(ROWS, WIDTH)
    x[np.abs(x) < 0.01] = 0.5  # finite differences across the kink are meaningless
    check(mesh, lambda tape, of: ops.relu(tape, of["x"]), lambda of: np.maximum(of["x"], 0), x=x)


def test_silu(mesh: Mesh):
    check(
        mesh,
        lambda tape, of: ops.silu(tape, of["x"]),
        lambda of: of["x"] / (1 + np.exp(-of["x"])),
        x=3 * normal(ROWS, WIDTH),
    )


def test_swiglu(mesh: Mesh):
    check(
        mesh,
        lambda tape, of: ops.swiglu(tape, of["gate"], of["up"]),
        lambda of: of["gate"] / (1 + np.exp(-of["gate"])) * of["up"],
        gate=3 * normal(50, 70),
        up=normal(50, 70),
    )


@pytest.mark.parametrize(("rows", "width"), [(ROWS, WIDTH), (50, 70), (1, 33), (96, 384)])
@pytest.mark.parametrize("offset", [0.0, 2.0])
def test_rms_norm(mesh: Mesh, rows: int, width: int, offset: float):
    def reference(of: Values) -> npt.NDArray[np.float64]:
        return of["x"] / np.sqrt((of["x"] ** 2).mean(axis=1, keepdims=True) + 1e-5) * of["gain"]

    check(
        mesh,
        lambda tape, of: ops.rms_norm(tape, of["x"], of["gain"]),
        reference,
        x=offset + 3 * normal(rows, width),
        gain=1 + normal(width),
    )


def test_rms_norm_of_another_width_is_an_error(mesh: Mesh):
    with pytest.raises(ValueError, match="width 32"):
        run(
            mesh,
            lambda tape, of: ops.rms_norm(tape, of["x"], of["gain"]),
            {"x": normal(ROWS, WIDTH), "gain": normal(64)},
            1.0,
        )


@pytest.mark.parametrize("width", [16, 32, 48, 64, 96])
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (3, 1)])
def test_grouped_attention(mesh: Mesh, heads: int, groups: int, width: int):
    mask = constant(mesh, causal_mask(), mesh.dtype)
    per_token = compute_frequencies(width, 100.0, None)
    rotation = Rotations(mesh, TOKENS, per_token).of(0, TOKENS)

    def forward(tape: Tape, of: dict[str, Parameter]) -> Variable:
        return ops.grouped_attention(tape, of["q"], of["k"], of["v"], rotation, mask, width)

    def in_heads(x: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
        return x.reshape(2, TOKENS, count, width).transpose(0, 2, 1, 3)

    def turned(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        angles = np.arange(TOKENS)[:, None] * per_token
        pairs = (x[..., : width // 2] + 1j * x[..., width // 2 :]) * np.exp(1j * angles)
        return np.concatenate([pairs.real, pairs.imag], axis=-1)

    def reference(of: Values) -> npt.NDArray[np.float64]:
        q = turned(in_heads(of["q"], heads))
        k, v = (np.repeat(in_heads(of[name], groups), heads // groups, axis=1) for name in ("k", "v"))
        weights = softmax(q @ turned(k).swapaxes(2, 3) / math.sqrt(width) + causal_mask())
        return (weights @ v).transpose(0, 2, 1, 3).reshape(2 * TOKENS, heads * width)

    check(
        mesh,
        forward,
        reference,
        q=normal(2 * TOKENS, heads * width),
        k=normal(2 * TOKENS, groups * width),
        v=normal(2 * TOKENS, groups * width),
    )


def test_a_rotation_of_other_tokens_is_an_error(mesh: Mesh):
    """Check what the device library does not: it would read wrong rows, or memory after the table."""
    mask = constant(mesh, causal_mask(), mesh.dtype)
    rotation = Rotations(mesh, 64, compute_frequencies(WIDTH, 100.0, None)).of(0, 64)
    x = constant(mesh, normal(1, 1, TOKENS, WIDTH), mesh.dtype)
    with pytest.raises(ValueError, match=r"\[1, 1, 64, 32\].*expected \[1, 1, 32, 32\]"):
        ops.grouped_attention(Tape(mesh), x, x, x, rotation, mask, WIDTH)


def test_a_cache_takes_no_more_than_its_window(mesh: Mesh):
    cache = ops.KeyValueCache(mesh, 1, 32, WIDTH)
    row = constant(mesh, normal(1, 1, 1, WIDTH), mesh.dtype).value
    rows = constant(mesh, normal(1, 1, 32, WIDTH), mesh.dtype).value
    with pytest.raises(ValueError, match=r"cache.*\b32\b.*\b1\b.*position 32"):
        cache.extend(row, row, 32)
    with pytest.raises(ValueError, match=r"32 tokens.*position 1"):
        cache.extend(rows, rows, 1)
