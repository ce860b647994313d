"""GPT-2 with every option, compared with a plain float64 model that reads the exported tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mesh.device import Mesh
from mesh.transfer import download
from services.config.models import GPT2Config
from services.errors import Refused
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Tensor
from training.models.build import (
    load_parameter,
)
from training.models.gpt2 import (
    GPT2,
    compute_sinusoids,
)
from training.models.initialise import (
    build_layout,
    draw_initial_value,
)

TOKENS, VOCABULARY, SEQUENCES = 32, 37, 2
SMALL: dict[str, Any] = {
    "num_heads": 2,
    "embedding_dim": 64,
    "num_blocks": 2,
    "max_sequence_length": TOKENS,
    "dropout_prob": 0.0,
}
OPTIONS = [
    {},
    {"bias": False, "weight_tying": True},
    {"activation": "gelu_tanh", "positional_embedding_type": "fixed"},
    {"num_heads": 4, "weight_tying": True},  # heads of half a tile
    {"bias": False, "positional_embedding_type": "fixed", "num_heads": 1},
]


def gelu(x: Any, tanh: bool) -> Any:
    if tanh:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def compute_reference(tensors: dict[str, Any], config: dict[str, Any], ids: Any, targets: Any) -> Any:
    """Return the negative log-likelihoods of a GPT-2 given as Hugging Face's tensors and config; float64, flat."""
    heads = config["n_head"]

    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + config["layer_norm_epsilon"])
        return scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def linear(x: Any, name: str) -> Any:
        return x @ tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def softmax(x: Any) -> Any:
        shifted = np.exp(x - x.max(axis=-1, keepdims=True))
        return shifted / shifted.sum(axis=-1, keepdims=True)

    sequences, tokens = ids.shape
    x = tensors["transformer.wte.weight"][ids.astype(np.int64)] + tensors["transformer.wpe.weight"]
    width = x.shape[-1]
    for index in range(config["n_layer"]):
        name = f"transformer.h.{index}"
        qkv = linear(norm(x, f"{name}.ln_1"), f"{name}.attn.c_attn")
        qkv = qkv.reshape(sequences, tokens, 3, heads, width // heads).transpose(2, 0, 3, 1, 4)
        scores = qkv[0] @ qkv[1].swapaxes(2, 3) / math.sqrt(width // heads)
        scores = np.where(np.tril(np.ones((tokens, tokens))) == 1, scores, -np.inf)
        attended = (softmax(scores) @ qkv[2]).transpose(0, 2, 1, 3).reshape(sequences, tokens, width)
        x = x + linear(attended, f"{name}.attn.c_proj")
        hidden = linear(norm(x, f"{name}.ln_2"), f"{name}.mlp.c_fc")
        hidden = gelu(hidden, config["activation_function"] == "gelu_new")
        x = x + linear(hidden, f"{name}.mlp.c_proj")
    tied = config["tie_word_embeddings"]
    projection = tensors["transformer.wte.weight" if tied else "lm_head.weight"]
    logits = (norm(x, "transformer.ln_f") @ projection.T).reshape(sequences * tokens, -1)
    probabilities = softmax(logits)
    return -np.log(probabilities[np.arange(len(logits)), targets.reshape(-1).astype(np.int64)])


def draw_batch(seed: int = 3) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    shape = (SEQUENCES, TOKENS)
    return (
        random.integers(0, VOCABULARY, shape, dtype=np.uint32),
        random.integers(0, VOCABULARY, shape, dtype=np.uint32),
    )


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_losses_and_gradients_of_every_option(mesh: Mesh, options: dict[str, Any]):
    random = np.random.default_rng(11)
    model = GPT2(GPT2Config(**{**SMALL, **options}), VOCABULARY, mesh)
    values = {}
    for parameter in model.parameters():
        # Larger than real initial weights, so that every part of the model matters.
        value = 0.2 * random.standard_normal(parameter.shape)
        if parameter.initial_mean:
            value += 1
        values[parameter.export_name] = value.astype(np.float32).astype(np.float64)
        load_parameter(mesh, parameter, values[parameter.export_name].astype(np.float32))
    tensors = {**values, **model.constant_exports()}
    config = model.hugging_face_config()
    inputs, targets = draw_batch()

    tape = Tape(mesh)
    loss = model.loss(tape, inputs, targets)
    expected = compute_reference(tensors, config, inputs, targets)
    np.testing.assert_allclose(download(mesh, loss.value).reshape(-1), expected, rtol=3e-5, atol=3e-5)

    gradients: dict[str, Any] = {}

    def take(parameter: Parameter, gradient: Tensor) -> None:
        gradients[parameter.export_name] = download(mesh, gradient).reshape(parameter.shape).copy()

    tape.backward(loss, 1 / inputs.size, take)
    assert gradients.keys() == values.keys()
    step = 1e-6
    for name, value in values.items():
        direction = random.standard_normal(value.shape)
        above = compute_reference({**tensors, name: value + step * direction}, config, inputs, targets).mean()
        below = compute_reference({**tensors, name: value - step * direction}, config, inputs, targets).mean()
        found = float((gradients[name].astype(np.float64) * direction).sum())
        size = float(np.linalg.norm(gradients[name]))
        assert found == pytest.approx((above - below) / (2 * step), rel=1e-3, abs=1e-3 * size), name


def test_the_layout_follows_the_forward_pass(mesh: Mesh):
    layout = build_layout(GPT2(GPT2Config(**{**SMALL, "num_blocks": 1}), VOCABULARY, mesh), decay_all=False)
    found = [(entry.name, entry.shape, entry.export_name) for entry in layout.entries]
    h, b = "transformer.h.0", "blocks.0"
    assert found == [
        ("token_embedding.weight", (37, 64), "transformer.wte.weight"),
        ("position_embedding.weight", (32, 64), "transformer.wpe.weight"),
        (f"{b}.attention_norm.weight", (64,), f"{h}.ln_1.weight"),
        (f"{b}.attention_norm.bias", (64,), f"{h}.ln_1.bias"),
        (f"{b}.attention.qkv.weight", (64, 192), f"{h}.attn.c_attn.weight"),
        (f"{b}.attention.qkv.bias", (192,), f"{h}.attn.c_attn.bias"),
        (f"{b}.attention.projection.weight", (64, 64), f"{h}.attn.c_proj.weight"),
        (f"{b}.attention.projection.bias", (64,), f"{h}.attn.c_proj.bias"),
        (f"{b}.feed_forward_norm.weight", (64,), f"{h}.ln_2.weight"),
        (f"{b}.feed_forward_norm.bias", (64,), f"{h}.ln_2.bias"),
        (f"{b}.feed_forward.expand.weight", (64, 256), f"{h}.mlp.c_fc.weight"),
        (f"{b}.feed_forward.expand.bias", (256,), f"{h}.mlp.c_fc.bias"),
        (f"{b}.feed_forward.projection.weight", (256, 64), f"{h}.mlp.c_proj.weight"),
        (f"{b}.feed_forward.projection.bias", (64,), f"{h}.mlp.c_proj.bias"),
        ("norm.weight", (64,), "transformer.ln_f.weight"),
        ("norm.bias", (64,), "transformer.ln_f.bias"),
        ("projection.weight", (37, 64), "lm_head.weight"),
    ]
    assert {entry.name for entry in layout.entries if entry.decays} == {
        name for name, shape, _ in found if len(shape) == 2
    }


def test_weight_decay_on_all_parameters(mesh: Mesh):
    layout = build_layout(GPT2(GPT2Config(**SMALL), VOCABULARY, mesh), decay_all=True)
    assert all(entry.decays for entry in layout.entries)


def test_exports_have_every_tensor_that_transformers_expects(mesh: Mesh):
    full = GPT2(GPT2Config(**SMALL), VOCABULARY, mesh)
    bare = GPT2(GPT2Config(**SMALL, bias=False, positional_embedding_type="fixed"), VOCABULARY, mesh)
    shapes = {parameter.export_name: parameter.shape for parameter in full.parameters()}
    bare_shapes = {parameter.export_name: parameter.shape for parameter in bare.parameters()}
    constants = bare.constant_exports()
    assert not full.constant_exports()
    assert not bare_shapes.keys() & constants.keys()
    assert {**bare_shapes, **{name: array.shape for name, array in constants.items()}} == shapes
    assert all(array.dtype == np.float32 for array in constants.values())


def test_initial_weights_are_gpt2_s(mesh: Mesh):
    config = GPT2Config(num_heads=2, embedding_dim=128, num_blocks=8, max_sequence_length=32)
    for parameter in GPT2(config, 200, mesh).parameters():
        value = draw_initial_value(parameter, 1)
        assert value.dtype == np.float32 and value.shape == (math.prod(parameter.shape),)
        if not parameter.is_matrix:
            assert (value == (1.0 if parameter.name.endswith("norm.weight") else 0.0)).all()
            continue
        deviation = 0.02 / 4 if ".projection." in parameter.name else 0.02
        assert value.std() == pytest.approx(deviation, rel=0.05)
        assert abs(value.mean()) < 0.1 * deviation
        np.testing.assert_array_equal(value, draw_initial_value(parameter, 1))
        assert not np.array_equal(value, draw_initial_value(parameter, 2))


def test_fixed_positions_are_sines_and_cosines():
    table = compute_sinusoids(64, 8)
    assert table.shape == (64, 8) and table.dtype == np.float32
    assert table[3, 0] == pytest.approx(math.sin(3)) and table[3, 1] == pytest.approx(math.cos(3))
    assert table[3, 4] == pytest.approx(math.sin(3 / 100)) and table[3, 5] == pytest.approx(math.cos(3 / 100))


def test_logits_of_a_position_see_only_what_is_before(mesh: Mesh):
    model = GPT2(GPT2Config(**SMALL), VOCABULARY, mesh)
    for parameter in model.parameters():
        load_parameter(mesh, parameter, draw_initial_value(parameter, 4))
    ids = draw_batch()[0][:1]
    first = download(mesh, model.logits(Tape(mesh, recording=False), ids, 5).value)
    assert first.shape == (1, 1, 1, VOCABULARY)
    changed = ids.copy()
    changed[0, 6:] = 0
    again = download(mesh, model.logits(Tape(mesh, recording=False), changed, 5).value)
    np.testing.assert_allclose(again, first, rtol=1e-5, atol=1e-6)
    changed[0, 5] = (changed[0, 5] + 1) % VOCABULARY
    other = download(mesh, model.logits(Tape(mesh, recording=False), changed, 5).value)
    assert np.abs(other - first).max() > 1e-3


def test_a_sequence_of_no_whole_tiles_is_refused(mesh: Mesh):
    with pytest.raises(Refused, match=r"max_sequence_length.*\b40\b.*\b32\b.*\b64\b"):
        GPT2(GPT2Config(**{**SMALL, "max_sequence_length": 40}), VOCABULARY, mesh)


def test_bfloat16_stays_close_to_float32(open_emulator: Callable[..., Mesh]):
    losses = {}
    inputs, targets = draw_batch()
    for dtype in ("float32", "bfloat16"):
        mesh = open_emulator(dtype=dtype)
        model = GPT2(GPT2Config(**SMALL), VOCABULARY, mesh)
        for parameter in model.parameters():
            load_parameter(mesh, parameter, draw_initial_value(parameter, 4))
        losses[dtype] = download(mesh, model.loss(Tape(mesh, recording=False), inputs, targets).value).copy()
    assert losses["bfloat16"].dtype == np.float32
    np.testing.assert_allclose(losses["bfloat16"], losses["float32"], rtol=0.01)
    assert (losses["bfloat16"] != losses["float32"]).any()
