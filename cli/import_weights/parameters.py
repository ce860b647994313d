"""Where each parameter of a GPT-2 or Llama is in tt-train's weights, and how it becomes Hugging Face's tensor.

tt-train's matrices are [1, 1, outputs, inputs], its vectors [1, 1, 1, width]. It fuses a Llama's keys and values, and
turns neighbouring columns of a head by rotary positions where Hugging Face turns halves. Vocabularies are padded to
whole tiles. Tied weights are saved once, under either name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cli.import_weights.weights_file import WeightsFile
from services.config.architecture import PretrainableConfig, expected_tensors
from services.config.models import LlamaConfig
from services.errors import Refused
from services.tensors.kernels.arithmetic import Float32Array

_MODULES = {"gpt2": "transformer", "llama": "llama"}
_BLOCKS = {"gpt2": "gpt_block", "llama": "llama_block"}
_LAYERS = {
    "transformer.wte": "tok_emb",
    "transformer.wpe": "pos_emb",
    "ln_1": "ln1",
    "attn.c_attn": "attention/qkv_linear",
    "attn.c_proj": "attention/out_linear",
    "ln_2": "ln2",
    "mlp.c_fc": "mlp/fc1",
    "mlp.c_proj": "mlp/fc2",
    "transformer.ln_f": "ln_fc",
    "model.embed_tokens": "tok_emb",
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "attention/q_linear",
    "self_attn.k_proj": "attention/kv_linear",
    "self_attn.v_proj": "attention/kv_linear",
    "self_attn.o_proj": "attention/out_linear",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "mlp/w1",
    "mlp.up_proj": "mlp/w3",
    "mlp.down_proj": "mlp/w2",
    "model.norm": "ln_fc",
    "lm_head": "fc",
}
"""Layers by Hugging Face's names. Those of a block are without its prefix."""
_NORMS = ("ln1", "ln2", "ln_fc", "attention_norm", "mlp_norm")
_NORM_LEAVES = {"weight": "gamma", "bias": "beta"}
_TABLES = ("tok_emb", "fc")
"""Layers with a row for each token."""
_NAME = re.compile(r"(?:(?:transformer\.h|model\.layers)\.(\d+)\.)?(.+)\.(weight|bias)")
_TILE_ROWS = 32


@dataclass(frozen=True)
class Source:
    """Where a tensor comes from.

    Attributes:
        name: tt-train's name of the parameter.
        shape: shape of the tensor, as Hugging Face has it.
        rows: rows of the parameter.
        columns: columns of the parameter.
        first_row: first of its rows that belong to the tensor.
        rotated_heads: number of heads whose rows are turned by rotary positions; 0 for none.
        is_transposed: whether Hugging Face has inputs before outputs.
        is_table: whether there is a row for each token, so that further rows may follow.
    """

    name: str
    shape: tuple[int, ...]
    rows: int
    columns: int
    first_row: int = 0
    rotated_heads: int = 0
    is_transposed: bool = False
    is_table: bool = False

    @property
    def saved_shape(self) -> tuple[int, ...]:
        """Shape of the parameter, without padding."""
        return (1, 1, self.rows, self.columns)

    def fits(self, found: tuple[int, ...]) -> bool:
        """Return whether the parameter has this shape in a file."""
        rows = {self.rows, -(-self.rows // _TILE_ROWS) * _TILE_ROWS} if self.is_table else {self.rows}
        return (1,) * (4 - len(found)) + found in {(1, 1, each, self.columns) for each in rows}

    def convert(self, parameter: Float32Array) -> Float32Array:
        """Return the tensor, given the parameter as it is in a file."""
        matrix = parameter.reshape(-1, self.columns)
        if len(self.shape) == 1:
            return matrix.reshape(self.shape)
        used = self.shape[1] if self.is_transposed else self.shape[0]
        matrix = matrix[self.first_row : self.first_row + used]
        if self.rotated_heads:
            pairs = matrix.reshape(self.rotated_heads, -1, 2, self.columns)
            matrix = pairs.swapaxes(1, 2).reshape(used, self.columns)
        return matrix.T if self.is_transposed else matrix


def find_sources(model: PretrainableConfig, weights: WeightsFile) -> dict[str, Source]:
    """Return where each tensor of a model is in a file of weights, by Hugging Face's names.

    Args:
        model: config of the model, with a `vocab_size`.
        weights: the file.

    Raises:
        Refused: the file has another model: a parameter is missing, unexpected, or has another shape.
    """
    module = _MODULES[model.model_type]
    _check_module(model.model_type, module, weights)
    sources = {
        name: _source(name, shape, model, module, weights.shapes)
        for name, shape in expected_tensors(model).items()
    }
    for source in sources.values():
        found = weights.shapes.get(source.name)
        if found is None:
            raise Refused(
                f"{weights.place}: no tensor {source.name}, expected shape {list(source.saved_shape)} by the job's "
                f"model; {_remedy(source.name, model, is_missing=True)}"
            )
        if not source.fits(found):
            raise Refused(
                f"{weights.place}: tensor {source.name} has shape {list(found)}, expected {list(source.saved_shape)} "
                "by the job's model; give the config that the weights were trained with"
            )
    for name in sorted(weights.shapes.keys() - {source.name for source in sources.values()}):
        _check_extra(name, model, weights)
    return sources


def _source(
    name: str, shape: tuple[int, ...], model: PretrainableConfig, module: str, found: Mapping[str, object]
) -> Source:
    match = _NAME.fullmatch(name)
    assert match is not None, name
    block, layer, leaf = match[1], _LAYERS[match[2]], match[3]
    is_table = layer in _TABLES
    if layer == "tok_emb" and model.weight_tying and f"{module}/tok_emb/weight" not in found:
        layer = "fc"  # tied weights are saved under either name
    if layer in _NORMS:
        leaf = _NORM_LEAVES[leaf]
    prefix = f"{module}/" if block is None else f"{module}/{_BLOCKS[model.model_type]}_{block}/"
    rows, columns = (1, *shape) if len(shape) == 1 else shape
    if block is not None and isinstance(model, LlamaConfig):
        return _llama_source(f"{prefix}{layer}/{leaf}", match[2], (rows, columns), shape, model)
    if block is not None and len(shape) == 2:
        return Source(f"{prefix}{layer}/{leaf}", shape, columns, rows, is_transposed=True)
    return Source(f"{prefix}{layer}/{leaf}", shape, rows, columns, is_table=is_table)


def _llama_source(
    name: str, layer: str, size: tuple[int, int], shape: tuple[int, ...], model: LlamaConfig
) -> Source:
    """Return where a tensor of a Llama's block comes from."""
    rows, columns = size
    match layer:
        case "self_attn.q_proj":
            return Source(name, shape, rows, columns, rotated_heads=model.num_heads)
        case "self_attn.k_proj":
            return Source(name, shape, 2 * rows, columns, rotated_heads=model.num_groups)
        case "self_attn.v_proj":
            return Source(name, shape, 2 * rows, columns, first_row=rows)
        case _:
            return Source(name, shape, rows, columns)


def _check_module(model_type: str, module: str, weights: WeightsFile) -> None:
    """Check that a file has weights of this kind of model (Refused)."""
    if not weights.shapes:
        raise Refused(
            f"{weights.place}: no weights of a GPT-2 or a Llama, expected keys that begin with {module}/{module}/; "
            "give a file that tt-train's nano_gpt has saved"
        )
    other = next((name for name in weights.shapes if not name.startswith(f"{module}/")), None)
    if other is not None:
        raise Refused(
            f"{weights.place}: has tensor {other}, expected those of the job's model, a {model_type}; give the config "
            "that the weights were trained with"
        )


def _check_extra(name: str, model: PretrainableConfig, weights: WeightsFile) -> None:
    """Check that a tensor without a parameter is one that changes nothing (Refused)."""
    shape = list(weights.shapes[name])
    if name != f"{_MODULES[model.model_type]}/fc/bias":
        raise Refused(
            f"{weights.place}: has tensor {name} of shape {shape}, expected only those of the job's model; "
            f"{_remedy(name, model, is_missing=False)}"
        )
    if weights.read(name).any():
        raise Refused(
            f"{weights.place}: tensor {name} of shape {shape} is not zero, expected none, as the output projection "
            "has no bias here; train without it"
        )


def _remedy(name: str, model: PretrainableConfig, *, is_missing: bool) -> str:
    """Return what to do about a tensor that is missing or unexpected."""
    given = "give the config that the weights were trained with"
    if name.endswith(("/fc/weight", "/tok_emb/weight")) and is_missing != model.weight_tying:
        return f"write weight_tying: {'enabled' if is_missing else 'disabled'}, or {given}"
    return given
