"""Floating-point operations of training on a token, and the peak of the chips that compute them.

tt-train counts 6N + 12LHQT operations a token (the formula of PaLM, arXiv:2204.02311, appendix B). N is the number of
parameters without the embeddings of tokens and positions, which are only looked up; the output projection counts, tied
or not (tt-metal's pull request 50114 of 2026-07, as in `ttml/models/qwen3/flops.py`). L is the number of blocks, H of
heads, Q the width of a head, and T the tokens of a sequence. The forward pass has 2 operations for each weight and
token, the backward pass 4. Attention is counted without the causal mask, as our kernels compute it, and a recomputed
forward pass is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.config.models import AnyModelConfig, GPT2Config, LlamaConfig
from services.config.parameters import model_parts

PEAK_FLOPS_PER_CORE: Mapping[str, float] = {"wormhole_b0": 1.0e12, "blackhole": 1.35e12}
"""Peak of a core in bfloat16 by architecture, in operations a second.

Source: tt-metal's tech report on matrix products (GEMM_FLOPS), at fidelity HiFi4, which training uses.
"""


def count_flops_per_token(model: AnyModelConfig, vocabulary: int) -> int | None:
    """Return 6N + 12LHQT, as tt-train counts it; None for a model that the formula is not about.

    Args:
        model: config of the model.
        vocabulary: number of tokens, without the padding that a mesh adds.
    """
    if not isinstance(model, GPT2Config | LlamaConfig):
        return None
    parameters = sum(part.elements for part in model_parts(model, vocabulary) if part.name != "embeddings")
    if model.weight_tying:  # the embedding is the output projection too
        parameters += vocabulary * model.embedding_dim
    heads_width = model.num_heads * model.head_width
    return 6 * parameters + 12 * model.num_blocks * heads_width * model.max_sequence_length


def find_peak_flops(arch: str, cores: int | None) -> float | None:
    """Return the peak of some cores in bfloat16, in operations a second; None if it is unknown.

    Args:
        arch: name of the architecture.
        cores: number of cores; None on the emulator.
    """
    per_core = PEAK_FLOPS_PER_CORE.get(arch)
    return None if per_core is None or cores is None else cores * per_core
