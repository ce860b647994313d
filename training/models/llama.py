"""Llama, as Hugging Face's LlamaForCausalLM computes it, with tt-train's config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from services.config.models import LlamaConfig
from services.pipeline.split import BlockRange
from training import ops
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Variable
from training.models.language import LanguageModel, RunBlock
from training.models.model import Array
from training.models.positions import Rotations, compute_frequencies
from training.models.tokens import Tokens
from training.modules.linear import INITIAL_DEVIATION
from training.modules.llama_block import (
    LlamaBlock,
)
from training.modules.rms_norm import (
    RMSNorm,
)


class Llama(LanguageModel):
    """Llama: queries and keys are turned by their positions. Matrices are [outputs, inputs], as in Hugging Face.

    Args:
        config: config of the model.
        vocabulary: number of tokens. It is padded on the mesh only.
        mesh: the mesh to run on.
        blocks: the blocks that are built, with what belongs to their range, see `LanguageModel`; None for all.

    Raises:
        Refused: the device library has no kernel for the sequence length.
    """

    def __init__(
        self, config: LlamaConfig, vocabulary: int, mesh: Mesh, blocks: BlockRange | None = None
    ) -> None:
        blocks = blocks or BlockRange.whole(config.num_blocks)
        width, tokens = config.embedding_dim, config.max_sequence_length
        super().__init__(
            config,
            mesh,
            blocks,
            tokens=Tokens(
                mesh,
                vocabulary,
                width,
                embedding_export="model.embed_tokens.weight",
                projection_export=None if config.weight_tying else "lm_head.weight",
            ),
            norm=RMSNorm("norm", width, export_prefix="model.norm.") if blocks.is_last else None,
            key_value_heads=config.num_groups,
        )
        self._config = config
        self._vocabulary = vocabulary
        self.blocks = [
            LlamaBlock(f"blocks.{index}", config, f"model.layers.{index}.")
            for index in range(blocks.first, blocks.stop)
        ]
        per_token = compute_frequencies(config.head_width, config.theta, config.rope_scaling)
        self._rotations = Rotations(mesh, tokens, per_token)

    def _inner_parameters(self) -> Iterator[Parameter]:
        for block in self.blocks:
            yield from block.parameters()

    def _enter(self, tape: Tape, ids: Array, position: int) -> Variable:
        return ops.dropout(tape, self.tokens.embed(tape, ids), self._config.dropout_prob, "embedding.dropout")

    def _runs(self, tape: Tape, mask: Variable, position: int, tokens: int) -> Sequence[RunBlock]:
        rotation = self._rotations.of(position, tokens)

        def run(block: LlamaBlock, x: Variable, past: ops.Past | None) -> Variable:
            return block(tape, x, mask, rotation, past)

        return [partial(run, block) for block in self.blocks]

    def hugging_face_config(self) -> dict[str, Any]:
        """Return the fields of transformers' LlamaForCausalLM."""
        config, scaling = self._config, self._config.rope_scaling
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self._vocabulary,
            "hidden_size": config.embedding_dim,
            "intermediate_size": config.feed_forward_width,
            "num_hidden_layers": config.num_blocks,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_groups,
            "head_dim": config.head_width,
            "hidden_act": "silu",
            "max_position_embeddings": config.max_sequence_length,
            "initializer_range": INITIAL_DEVIATION,
            "rms_norm_eps": ops.RMS_NORM_EPSILON,
            "rope_theta": config.theta,
            "rope_scaling": None
            if scaling is None
            else {
                "rope_type": "llama3",
                "factor": scaling.scaling_factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_context_length,
            },
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "tie_word_embeddings": config.weight_tying,
            # This tokenizer has no begin and end of text; the defaults are ids of Llama's own.
            "bos_token_id": None,
            "eos_token_id": None,
            "torch_dtype": "float32",
        }

    def constant_exports(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return no tensors."""
        return {}
