"""Llama with every option, compared with a plain float64 model that reads the exported tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mesh.axes import Axes
from mesh.device import Mesh
from mesh.transfer import download
from services.config.models import GPT2Config, LlamaConfig, RopeScaling
from services.errors import Refused
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Tensor
from training.models.build import (
    build_model,
    load_parameter,
)
from training.models.initialise import (
    build_layout,
    draw_initial_value,
)
from training.models.llama import (
    Llama,
)
from training.models.positions import compute_frequencies

TOKENS, VOCABULARY, SEQUENCES = 32, 37, 2
SMALL: dict[str, Any] = {
    "num_heads": 4,
    "num_groups": 2,
    "embedding_dim": 128,
    "intermediate_dim": 96,
    "num_blocks": 2,
    "max_sequence_length": TOKENS,
    "dropout_prob": 0.0,
}
# Slows some of the rotations of a head of 32, keeps some, blends some.
SCALING = RopeScaling(
    scaling_factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_length=64
)
OPTIONS = [
    {},
    {"num_groups": 4, "weight_tying": True},
    {"num_groups": 1, "theta": 500000.0, "rope_scaling": SCALING},
    {"num_heads": 2, "num_groups": 1, "runner_type": "memory_efficient"},  # heads of 64
    {
        "num_heads": 2,
        "num_groups": 2,
        "embedding_dim": 192,
    },  # heads of 96, which the rotary kernel doesn't support
]


def compute_reference(tensors: dict[str, Any], config: dict[str, Any], ids: Any, targets: Any) -> Any:
    """Return the negative log-likelihoods of a Llama given as Hugging Face's tensors and config; float64, flat.

    Written from the papers: RMSNorm (arXiv:1910.07467), rotary positions (arXiv:2104.09864) in Hugging Face's order of
    elements, grouped queries (arXiv:2305.13245), SwiGLU (arXiv:2002.05202), Llama 3.1's scaling of frequencies.
    """
    heads, groups, width = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    sequences, tokens = ids.shape

    def norm(x: Any, name: str) -> Any:
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + config["rms_norm_eps"]) * tensors[name]

    def linear(x: Any, name: str) -> Any:
        return x @ tensors[f"{name}.weight"].T

    def in_heads(x: Any, count: int) -> Any:
        return x.reshape(sequences, tokens, count, width).transpose(0, 2, 1, 3)

    turning = np.array([compute_frequency(config, pair) for pair in range(width // 2)])
    angles = np.arange(tokens)[:, None] * turning

    def rotated(x: Any) -> Any:
        # Each pair (i, i + width / 2) as a complex number, turned by its angle.
        turned = (x[..., : width // 2] + 1j * x[..., width // 2 :]) * np.exp(1j * angles)
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def softmax(x: Any) -> Any:
        shifted = np.exp(x - x.max(axis=-1, keepdims=True))
        return shifted / shifted.sum(axis=-1, keepdims=True)

    x = tensors["model.embed_tokens.weight"][ids.astype(np.int64)]
    for index in range(config["num_hidden_layers"]):
        name = f"model.layers.{index}"
        normal = norm(x, f"{name}.input_layernorm.weight")
        q = rotated(in_heads(linear(normal, f"{name}.self_attn.q_proj"), heads))
        k = rotated(in_heads(linear(normal, f"{name}.self_attn.k_proj"), groups))
        v = in_heads(linear(normal, f"{name}.self_attn.v_proj"), groups)
        attended = np.empty_like(q)
        for head in range(heads):
            group = head // (heads // groups)
            scores = q[:, head] @ k[:, group].swapaxes(1, 2) / math.sqrt(width)
            scores = np.where(np.tril(np.ones((tokens, tokens))) == 1, scores, -np.inf)
            attended[:, head] = softmax(scores) @ v[:, group]
        rows = attended.transpose(0, 2, 1, 3).reshape(sequences, tokens, heads * width)
        x = x + linear(rows, f"{name}.self_attn.o_proj")
        normal = norm(x, f"{name}.post_attention_layernorm.weight")
        gate = linear(normal, f"{name}.mlp.gate_proj")
        hidden = gate / (1 + np.exp(-gate)) * linear(normal, f"{name}.mlp.up_proj")
        x = x + linear(hidden, f"{name}.mlp.down_proj")
    tied = config["tie_word_embeddings"]
    projection = tensors["model.embed_tokens.weight" if tied else "lm_head.weight"]
    logits = (norm(x, "model.norm.weight") @ projection.T).reshape(sequences * tokens, -1)
    probabilities = softmax(logits)
    return -np.log(probabilities[np.arange(len(logits)), targets.reshape(-1).astype(np.int64)])


def compute_frequency(config: dict[str, Any], pair: int) -> float:
    """Return radians per token of one pair, with Llama 3.1's three cases written out."""
    plain = float(config["rope_theta"] ** (-2 * pair / config["head_dim"]))
    scaling = config["rope_scaling"]
    if scaling is None:
        return plain
    wavelength = 2 * math.pi / plain
    context = scaling["original_max_position_embeddings"]
    if wavelength < context / scaling["high_freq_factor"]:
        return plain
    if wavelength > context / scaling["low_freq_factor"]:
        return plain / float(scaling["factor"])
    smooth = (context / wavelength - scaling["low_freq_factor"]) / (
        scaling["high_freq_factor"] - scaling["low_freq_factor"]
    )
    return float((1 - smooth) * plain / scaling["factor"] + smooth * plain)


def draw_batch(seed: int = 3) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    ids = random.integers(0, VOCABULARY, (SEQUENCES, TOKENS + 1), dtype=np.uint32)
    return ids[:, :-1].copy(), ids[:, 1:].copy()


def build(mesh: Mesh, **options: Any) -> Llama:
    model = build_model(LlamaConfig(**{**SMALL, **options}), VOCABULARY, mesh)
    assert isinstance(model, Llama)
    return model


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_losses_and_gradients_of_every_option(mesh: Mesh, options: dict[str, Any]):
    random = np.random.default_rng(11)
    model = build(mesh, **options)
    values = {}
    for parameter in model.parameters():
        # Larger than real initial weights, so that every part of the model matters.
        value = 0.1 * random.standard_normal(parameter.shape)
        if parameter.initial_mean:
            value += 1
        values[parameter.export_name] = value.astype(np.float32).astype(np.float64)
        load_parameter(mesh, parameter, values[parameter.export_name].astype(np.float32))
    config = model.hugging_face_config()
    inputs, targets = draw_batch()

    tape = Tape(mesh)
    loss = model.loss(tape, inputs, targets)
    expected = compute_reference(values, config, inputs, targets)
    np.testing.assert_allclose(download(mesh, loss.value).reshape(-1), expected, rtol=1e-5, atol=1e-5)

    gradients: dict[str, Any] = {}

    def take(parameter: Parameter, gradient: Tensor) -> None:
        gradients[parameter.export_name] = download(mesh, gradient).reshape(parameter.shape).copy()

    tape.backward(loss, 1 / inputs.size, take)
    assert gradients.keys() == values.keys()
    step = 1e-6
    for name, value in values.items():
        direction = random.standard_normal(value.shape)
        above = compute_reference({**values, name: value + step * direction}, config, inputs, targets).mean()
        below = compute_reference({**values, name: value - step * direction}, config, inputs, targets).mean()
        found = float((gradients[name].astype(np.float64) * direction).sum())
        size = float(np.linalg.norm(gradients[name]))
        assert found == pytest.approx((above - below) / (2 * step), rel=1e-3, abs=1e-3 * size), name


def test_the_layout_follows_the_forward_pass_in_hugging_face_s_shapes(mesh: Mesh):
    layout = build_layout(build(mesh, num_blocks=1), decay_all=False)
    found = [(entry.name, entry.shape, entry.export_name) for entry in layout.entries]
    h, b = "model.layers.0", "blocks.0"
    assert found == [
        ("token_embedding.weight", (37, 128), "model.embed_tokens.weight"),
        (f"{b}.attention_norm.weight", (128,), f"{h}.input_layernorm.weight"),
        (f"{b}.attention.query.weight", (128, 128), f"{h}.self_attn.q_proj.weight"),
        (f"{b}.attention.key.weight", (64, 128), f"{h}.self_attn.k_proj.weight"),
        (f"{b}.attention.value.weight", (64, 128), f"{h}.self_attn.v_proj.weight"),
        (f"{b}.attention.output.weight", (128, 128), f"{h}.self_attn.o_proj.weight"),
        (f"{b}.feed_forward_norm.weight", (128,), f"{h}.post_attention_layernorm.weight"),
        (f"{b}.feed_forward.gate.weight", (96, 128), f"{h}.mlp.gate_proj.weight"),
        (f"{b}.feed_forward.up.weight", (96, 128), f"{h}.mlp.up_proj.weight"),
        (f"{b}.feed_forward.down.weight", (128, 96), f"{h}.mlp.down_proj.weight"),
        ("norm.weight", (128,), "model.norm.weight"),
        ("projection.weight", (37, 128), "lm_head.weight"),
    ]
    assert not any(entry.export_transpose for entry in layout.entries)
    assert {entry.name for entry in layout.entries if entry.decays} == {
        name for name, shape, _ in found if len(shape) == 2
    }


def test_initial_weights_are_llama_s(mesh: Mesh):
    for parameter in build(mesh).parameters():
        value = draw_initial_value(parameter, 1)
        if parameter.is_matrix:
            assert value.std() == pytest.approx(0.02, rel=0.05)
        else:
            assert (value == 1).all()


NANOLLAMA3 = LlamaConfig(max_sequence_length=256, theta=500000.0)
TINYLLAMA = LlamaConfig(
    num_heads=32, num_groups=4, embedding_dim=2048, num_blocks=22, max_sequence_length=2048
)
LLAMA_3_8B = LlamaConfig(
    num_heads=32,
    num_groups=8,
    embedding_dim=4096,
    intermediate_dim=14336,
    num_blocks=32,
    max_sequence_length=8192,
    theta=500000.0,
)
GPT2_SMALL = GPT2Config(
    num_heads=12, embedding_dim=768, num_blocks=12, max_sequence_length=1024, weight_tying=True
)


@pytest.mark.parametrize(
    ("config", "vocabulary", "parameters"),
    [
        # 2 x 32000 x 384, and 6 blocks of (2 x 384 + 2 x 384 x 384 + 2 x 192 x 384 + 3 x 1024 x 384), and 384
        (NANOLLAMA3, 32_000, 34_313_088),
        (TINYLLAMA, 32_000, 1_100_048_384),
        (LLAMA_3_8B, 128_256, 8_030_261_248),
        (GPT2_SMALL, 50_257, 124_439_808),
    ],
)
def test_layouts_of_large_models_need_no_weights(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, config: Any, vocabulary: int, parameters: int
):
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a tensor was made")

    monkeypatch.setattr(mesh.tt, "Tensor", refuse)
    model = build_model(config, vocabulary, mesh)
    assert sum(math.prod(parameter.shape) for parameter in model.parameters()) == parameters
    assert build_layout(model, decay_all=True).elements == parameters


@pytest.mark.parametrize("scaling", [None, SCALING])
def test_frequencies_are_llama_s(scaling: RopeScaling | None):
    stated = None
    if scaling is not None:
        stated = {
            "factor": scaling.scaling_factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context_length,
        }
    config = {"head_dim": 32, "rope_theta": 10000.0, "rope_scaling": stated}
    found = compute_frequencies(32, 10000.0, scaling)
    np.testing.assert_allclose(found, [compute_frequency(config, pair) for pair in range(16)], rtol=1e-12)
    plain = compute_frequencies(32, 10000.0, None)
    blended = (found != plain) & ~np.isclose(found, plain / 8)
    # All three cases are there.
    assert scaling is None or (
        blended.any() and (found == plain).any() and np.isclose(found, plain / 8).any()
    )


def test_a_sequence_of_no_whole_tiles_is_refused(mesh: Mesh):
    with pytest.raises(Refused, match=r"max_sequence_length.*\b40\b.*\b32\b.*\b64\b"):
        build(mesh, max_sequence_length=40)


def test_a_row_of_no_whole_heads_is_an_error(open_emulator: Callable[..., Mesh]):
    mesh = open_emulator((1, 4), axes=Axes(tensor=1))
    model = build(mesh)
    for parameter in model.parameters():
        load_parameter(mesh, parameter, draw_initial_value(parameter, 4))
    with pytest.raises(ValueError, match=r"16 elements.*multiple.*32"):
        model.loss(Tape(mesh), *draw_batch())


def test_bfloat16_stays_close_to_float32(open_emulator: Callable[..., Mesh]):
    found = {}
    inputs, targets = draw_batch()
    for dtype in ("float32", "bfloat16"):
        mesh = open_emulator(dtype=dtype)
        model = build(mesh)
        for parameter in model.parameters():
            load_parameter(mesh, parameter, draw_initial_value(parameter, 4))
        tape = Tape(mesh)
        loss = model.loss(tape, inputs, targets)
        gradients = {}

        def take(parameter: Parameter, gradient: Tensor, mesh: Mesh = mesh, out: Any = gradients) -> None:
            out[parameter.name] = download(mesh, gradient).copy()

        tape.backward(loss, 1 / inputs.size, take)
        found[dtype] = (download(mesh, loss.value).copy(), gradients)
    np.testing.assert_allclose(found["bfloat16"][0], found["float32"][0], rtol=0.01)
    assert (found["bfloat16"][0] != found["float32"][0]).any()
    for name, gradient in found["float32"][1].items():
        error = np.linalg.norm(found["bfloat16"][1][name] - gradient)
        assert error < 0.05 * np.linalg.norm(gradient), name
