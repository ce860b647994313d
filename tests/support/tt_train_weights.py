"""Files of weights as tt-train saves them, made byte by byte from MessagePack's documented layout."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]


def pack_head(kind: int, small: tuple[int, int], count: int) -> bytes:
    """Return the head of a text, list or map: `small` is the first byte and the limit of its short form."""
    if count < small[1]:
        return bytes([small[0] + count])
    return (
        bytes([kind]) + struct.pack(">H", count)
        if count < 1 << 16
        else bytes([kind + 1]) + struct.pack(">I", count)
    )


def pack_map(count: int) -> bytes:
    """Return the head of a map."""
    return pack_head(0xDE, (0x80, 16), count)


def pack_list(count: int) -> bytes:
    """Return the head of a list."""
    return pack_head(0xDC, (0x90, 16), count)


def pack_text(text: str) -> bytes:
    """Return a text."""
    data = text.encode()
    head = bytes([0xD9, len(data)]) if 32 <= len(data) < 256 else pack_head(0xDA, (0xA0, 32), len(data))
    return head + data


def pack_bytes(data: bytes) -> bytes:
    """Return a byte string."""
    return bytes([0xC4, len(data)]) + data


def pack_integer(value: int) -> bytes:
    """Return an integer in its shortest form."""
    if -32 <= value < 128:
        return struct.pack(">b", value) if value < 0 else bytes([value])
    forms = (
        (0xCC, "B"),
        (0xCD, "H"),
        (0xCE, "I"),
        (0xCF, "Q"),
        (0xD0, "b"),
        (0xD1, "h"),
        (0xD2, "i"),
        (0xD3, "q"),
    )
    for first, form in forms[4:] if value < 0 else forms[:4]:
        try:
            return bytes([first]) + struct.pack(f">{form}", value)
        except struct.error:
            continue
    raise ValueError(f"{value} has more than 64 bits")


def pack_float(value: float) -> bytes:
    """Return a float32 as MessagePack 6.1 for C++ does: as an integer if it has no fraction."""
    if value == value and abs(value) < 2**63 and value == int(value):
        return pack_integer(int(value))
    return b"\xca" + struct.pack(">f", value)


def pair(index: int, value: bytes) -> bytes:
    """Return a value with the number of its C++ type."""
    return pack_list(2) + pack_integer(index) + value


def tensor_entries(name: str, array: Float32Array, data_type: int = 0) -> dict[str, bytes]:
    """Return the keys and values of a tensor."""
    shape = np.array((1,) * (4 - array.ndim) + array.shape, "<u4").tobytes()
    numbers = b"".join(map(pack_float, array.ravel().tolist()))
    return {
        f"{name}/shape": pair(12, pack_bytes(shape)),
        f"{name}/data_type": pair(2, pack_integer(data_type)),
        f"{name}/layout": pair(2, pack_integer(1)),
        f"{name}/storage_type": pair(2, pack_integer(1)),
        f"{name}/data": pair(10, pack_list(array.size) + numbers),
    }


def parameter_entries(prefix: str, parameters: Mapping[str, Float32Array]) -> dict[str, bytes]:
    """Return the keys and values of parameters, named as tt-train does."""
    entries: dict[str, bytes] = {}
    for name, array in parameters.items():
        entries |= tensor_entries(f"{prefix}/{name}/value", array)
        entries[f"{prefix}/{name}/requires_grads"] = pair(0, b"\xc3")
        entries[f"{prefix}/{name}/has_grads"] = pair(0, b"\xc2")
    return entries


def pack_entries(entries: Mapping[str, bytes]) -> bytes:
    """Return a file with these keys and values."""
    return pack_map(len(entries)) + b"".join(pack_text(key) + value for key, value in entries.items())


def tt_train_parameters(tensors: Mapping[str, Any], heads: int, groups: int) -> dict[str, Float32Array]:
    """Return parameters as tt-train has them, from Hugging Face's tensors of a GPT-2 or a Llama.

    Vocabularies are padded to whole tiles.
    """
    if "model.norm.weight" in tensors:
        return dict(_llama(tensors, heads, groups))
    return dict(_gpt2(tensors))


def _gpt2(tensors: Mapping[str, Any]) -> Iterable[tuple[str, Float32Array]]:
    yield "transformer/tok_emb/weight", _padded(tensors["transformer.wte.weight"])
    yield "transformer/pos_emb/weight", tensors["transformer.wpe.weight"]
    if "lm_head.weight" in tensors:
        yield "transformer/fc/weight", _padded(tensors["lm_head.weight"])
    yield from _norm("transformer/ln_fc", "transformer.ln_f", tensors)
    for block in range(_blocks(tensors, "transformer.h.")):
        ours, theirs = f"transformer.h.{block}", f"transformer/gpt_block_{block}"
        yield from _norm(f"{theirs}/ln1", f"{ours}.ln_1", tensors)
        yield from _norm(f"{theirs}/ln2", f"{ours}.ln_2", tensors)
        for there, here in (
            ("attention/qkv_linear", "attn.c_attn"),
            ("attention/out_linear", "attn.c_proj"),
            ("mlp/fc1", "mlp.c_fc"),
            ("mlp/fc2", "mlp.c_proj"),
        ):
            yield f"{theirs}/{there}/weight", tensors[f"{ours}.{here}.weight"].T
            yield f"{theirs}/{there}/bias", tensors[f"{ours}.{here}.bias"]


def _llama(tensors: Mapping[str, Any], heads: int, groups: int) -> Iterable[tuple[str, Float32Array]]:
    yield "llama/tok_emb/weight", _padded(tensors["model.embed_tokens.weight"])
    if "lm_head.weight" in tensors:
        yield "llama/fc/weight", _padded(tensors["lm_head.weight"])
    yield "llama/ln_fc/gamma", tensors["model.norm.weight"]
    for block in range(_blocks(tensors, "model.layers.")):
        ours, theirs = f"model.layers.{block}", f"llama/llama_block_{block}"
        yield f"{theirs}/attention_norm/gamma", tensors[f"{ours}.input_layernorm.weight"]
        yield f"{theirs}/mlp_norm/gamma", tensors[f"{ours}.post_attention_layernorm.weight"]
        keys = interleave(tensors[f"{ours}.self_attn.k_proj.weight"], groups)
        values = tensors[f"{ours}.self_attn.v_proj.weight"]
        yield f"{theirs}/attention/kv_linear/weight", np.concatenate([keys, values])
        yield (
            f"{theirs}/attention/q_linear/weight",
            interleave(tensors[f"{ours}.self_attn.q_proj.weight"], heads),
        )
        yield f"{theirs}/attention/out_linear/weight", tensors[f"{ours}.self_attn.o_proj.weight"]
        for there, here in (("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")):
            yield f"{theirs}/mlp/{there}/weight", tensors[f"{ours}.mlp.{here}.weight"]


def interleave(matrix: Float32Array, heads: int) -> Float32Array:
    """Return rows in the order that tt-train's rotary positions need: of each head 0, half, 1, half + 1, ..."""
    width = len(matrix) // heads
    rows = [
        head * width + half * width // 2 + index
        for head in range(heads)
        for index in range(width // 2)
        for half in (0, 1)
    ]
    return matrix[rows]


def _norm(theirs: str, ours: str, tensors: Mapping[str, Any]) -> Iterable[tuple[str, Float32Array]]:
    yield f"{theirs}/gamma", tensors[f"{ours}.weight"]
    yield f"{theirs}/beta", tensors[f"{ours}.bias"]


def _padded(table: Float32Array) -> Float32Array:
    return np.concatenate([table, np.full((-len(table) % 32, table.shape[1]), 7.5, np.float32)])


def _blocks(tensors: Mapping[str, Any], prefix: str) -> int:
    return 1 + max(
        int(name.removeprefix(prefix).split(".")[0]) for name in tensors if name.startswith(prefix)
    )
