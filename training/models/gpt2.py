"""GPT-2, with the config of tt-train's NanoGPT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from services.config.models import GPT2Config
from services.pipeline.split import BlockRange
from training import ops
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Variable
from training.models.language import LanguageModel, RunBlock
from training.models.model import Array, constant
from training.models.tokens import Tokens
from training.modules.gpt2_block import (
    GPT2Block,
)
from training.modules.layer_norm import (
    LayerNorm,
)
from training.modules.linear import INITIAL_DEVIATION


class GPT2(LanguageModel):
    """GPT-2: trained or fixed positions are added to the tokens' embeddings.

    Args:
        config: config of the model.
        vocabulary: number of the tokenizer's tokens. It is padded on the mesh only.
        mesh: the mesh to run on.
        blocks: the blocks that are built, with what belongs to their range, see `LanguageModel`; None for all.

    Raises:
        Refused: the device library has no kernel for the sequence length.
    """

    def __init__(
        self, config: GPT2Config, vocabulary: int, mesh: Mesh, blocks: BlockRange | None = None
    ) -> None:
        blocks = blocks or BlockRange.whole(config.num_blocks)
        width = config.embedding_dim
        super().__init__(
            config,
            mesh,
            blocks,
            tokens=Tokens(
                mesh,
                vocabulary,
                width,
                embedding_export="transformer.wte.weight",
                projection_export=None if config.weight_tying else "lm_head.weight",
            ),
            norm=LayerNorm("norm", width, bias=config.bias, export_prefix="transformer.ln_f.")
            if blocks.is_last
            else None,
            key_value_heads=config.num_heads,
        )
        self._config = config
        self._vocabulary = vocabulary
        self.position_embedding: Parameter | None = None
        if config.positional_embedding_type == "trainable" and blocks.is_first:
            self.position_embedding = Parameter(
                "position_embedding.weight",
                (config.max_sequence_length, width),
                export_name="transformer.wpe.weight",
                initial_deviation=INITIAL_DEVIATION,
            )
        self.blocks = [
            GPT2Block(f"blocks.{index}", config, f"transformer.h.{index}.")
            for index in range(blocks.first, blocks.stop)
        ]

    def _inner_parameters(self) -> Iterator[Parameter]:
        if self.position_embedding is not None:
            yield self.position_embedding
        for block in self.blocks:
            yield from block.parameters()

    def _enter(self, tape: Tape, ids: Array, position: int) -> Variable:
        tokens, positions = ids.shape[1], self._positions
        if tokens < self._config.max_sequence_length:
            positions = ops.take_rows(tape, positions, position, position + tokens)
        x = ops.add_positions(tape, self.tokens.embed(tape, ids), positions)
        return ops.dropout(tape, x, self._config.dropout_prob, "embedding.dropout")

    def _runs(self, tape: Tape, mask: Variable, position: int, tokens: int) -> Sequence[RunBlock]:
        def run(block: GPT2Block, x: Variable, past: ops.Past | None) -> Variable:
            return block(tape, x, mask, past)

        return [partial(run, block) for block in self.blocks]

    @cached_property
    def _positions(self) -> Variable:
        """Embeddings of the positions, [1, 1, tokens, width]."""
        if self.position_embedding is not None:
            return self.position_embedding
        table = compute_sinusoids(self._config.max_sequence_length, self._config.embedding_dim)
        return constant(self._mesh, table[None, None], self._mesh.dtype)

    def hugging_face_config(self) -> dict[str, Any]:
        """Return the fields of transformers' GPT2LMHeadModel."""
        config = self._config
        dropout = config.dropout_prob
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": self._vocabulary,
            "n_positions": config.max_sequence_length,
            "n_embd": config.embedding_dim,
            "n_layer": config.num_blocks,
            "n_head": config.num_heads,
            "activation_function": "gelu_new" if config.activation == "gelu_tanh" else "gelu",
            "resid_pdrop": dropout,
            "embd_pdrop": dropout,
            "attn_pdrop": dropout,
            "layer_norm_epsilon": ops.LAYER_NORM_EPSILON,
            "initializer_range": INITIAL_DEVIATION,
            "tie_word_embeddings": config.weight_tying,
            # This tokenizer has no begin and end of text; the defaults are ids of GPT-2's own.
            "bos_token_id": None,
            "eos_token_id": None,
            "torch_dtype": "float32",
        }

    def constant_exports(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return zero biases for a model without biases, and fixed positions: transformers' GPT-2 needs both."""
        config = self._config
        width = config.embedding_dim
        exports: dict[str, npt.NDArray[np.float32]] = {}
        if config.positional_embedding_type == "fixed":
            exports["transformer.wpe.weight"] = compute_sinusoids(config.max_sequence_length, width)
        if not config.bias:
            widths = {
                "ln_1": width,
                "attn.c_attn": 3 * width,
                "attn.c_proj": width,
                "ln_2": width,
                "mlp.c_fc": 4 * width,
                "mlp.c_proj": width,
            }
            for index in range(config.num_blocks):
                for layer, size in widths.items():
                    exports[f"transformer.h.{index}.{layer}.bias"] = np.zeros(size, np.float32)
            exports["transformer.ln_f.bias"] = np.zeros(width, np.float32)
        return exports


def compute_sinusoids(tokens: int, width: int) -> npt.NDArray[np.float32]:
    """Return fixed positions [tokens, width]: sines in the even columns, cosines in the odd ones."""
    columns = np.arange(width)
    angles = np.arange(tokens)[:, None] / 10000.0 ** ((columns - columns % 2) / width)
    return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles)).astype(np.float32)
