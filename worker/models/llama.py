"""Llama, as Hugging Face's LlamaForCausalLM, by tt-train's configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from services.config import LlamaConfig
from worker import ops
from worker.autograd import Parameter, Tape, Variable
from worker.models.blocks import through_blocks
from worker.models.causal import Masks, check_tokens
from worker.models.model import Array
from worker.models.positions import Rotations, frequencies
from worker.models.tokens import Tokens
from worker.modules import LlamaBlock, RMSNorm
from worker.modules.initial import INITIAL_DEVIATION


class Llama:
    """Token embedding, blocks, a last norm, the projection to the vocabulary; positions turn queries and keys.

    Matrices lie as Hugging Face has them, [outputs, inputs].

    Args:
        config: of the model.
        vocabulary: number of tokens; the mesh pads it, nothing else does.
        mesh: to run on.

    Raises:
        Refused: a sequence length that the device library has no kernel for.
    """

    def __init__(self, config: LlamaConfig, vocabulary: int, mesh: Mesh) -> None:
        check_tokens(config.max_sequence_length)
        self._config = config
        self._mesh = mesh
        self._vocabulary = vocabulary
        self.tokens = Tokens(
            mesh,
            vocabulary,
            config.embedding_dim,
            embedding_export="model.embed_tokens.weight",
            projection_export=None if config.weight_tying else "lm_head.weight",
        )
        self.blocks = [
            LlamaBlock(f"blocks.{index}", config, f"model.layers.{index}.")
            for index in range(config.num_blocks)
        ]
        self.norm = RMSNorm("norm", config.embedding_dim, export_prefix="model.norm.")
        self._recomputes = config.runner_type == "memory_efficient"
        self._masks = Masks(mesh, config.max_sequence_length)
        self._rotations = Rotations(
            mesh,
            config.max_sequence_length,
            frequencies(config.head_width, config.theta, config.rope_scaling),
        )

    def parameters(self) -> Iterator[Parameter]:
        """In order of first use in the forward pass; a tied projection is the token embedding, and comes once."""
        yield self.tokens.embedding
        for block in self.blocks:
            yield from block.parameters()
        yield from self.norm.parameters()
        yield from self.tokens.last_parameters()

    def loss(self, tape: Tape, inputs: Array, targets: Array) -> Variable:
        """The negative log-likelihood of each target.

        Args:
            tape: of this pass.
            inputs: uint32 [sequences, tokens] token ids; tokens is the model's `max_sequence_length`.
            targets: the same shape: the id that follows each.

        Returns:
            float32 [1, 1, sequences x tokens of one device, 1].
        """
        return self.tokens.loss(tape, self._hidden(tape, inputs), targets)

    def logits(
        self, tape: Tape, ids: Array, row: int, caches: Sequence[ops.KeyValueCache] = (), position: int = 0
    ) -> Variable:
        """See `TextModel`."""
        return self.tokens.logits(
            tape, ops.take_rows(tape, self._hidden(tape, ids, caches, position), row, row + 1)
        )

    def caches(self, window: int) -> tuple[ops.KeyValueCache, ...]:
        """See `TextModel`."""
        config = self._config
        return tuple(
            ops.KeyValueCache(self._mesh, config.num_groups, window, config.head_width) for _ in self.blocks
        )

    def _hidden(
        self, tape: Tape, ids: Array, caches: Sequence[ops.KeyValueCache] = (), position: int = 0
    ) -> Variable:
        """[1, 1, sequences x tokens of one device, width], ready for the projection."""
        first = position == 0
        mask = self._masks.of(ids.shape[1]) if first else self._masks.of_one(position, caches[0].window)
        turning = self._rotations.of(position, ids.shape[1])
        x = ops.dropout(tape, self.tokens.embed(tape, ids), self._config.dropout_prob, "embedding.dropout")

        def run(block: LlamaBlock, x: Variable, past: ops.Past | None) -> Variable:
            return block(tape, x, mask, turning, past)

        blocks = [partial(run, block) for block in self.blocks]
        x = through_blocks(tape, x, blocks, recompute=self._recomputes, caches=caches, position=position)
        return self.norm(tape, x)

    def hugging_face_config(self) -> dict[str, Any]:
        """The fields of transformers' LlamaForCausalLM."""
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
            # Ours starts and ends no text with a token of its own; the defaults are ids of another tokenizer.
            "bos_token_id": None,
            "eos_token_id": None,
            "torch_dtype": "float32",
        }

    def constant_exports(self) -> dict[str, npt.NDArray[np.float32]]:
        """None."""
        return {}
