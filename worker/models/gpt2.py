"""GPT-2, as tt-train's NanoGPT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from services.config import GPT2Config
from services.errors import Refused
from worker import ops
from worker.autograd import Parameter, Tape, Variable
from worker.models.model import Array, batched, constant
from worker.modules import Block, LayerNorm
from worker.modules.initial import INITIAL_DEVIATION
from worker.parallel import Split

MASKED = -1e9
"""Added to the score of a key that a query may not see; well within bfloat16's range."""


class GPT2:
    """Token and position embeddings, blocks, a last layer norm, the projection to the vocabulary.

    Args:
        config: of the model.
        vocabulary: number of tokens that the tokenizer has; the mesh pads it, nothing else does.
        mesh: to run on.

    Raises:
        Refused: a sequence length that the device library has no kernel for.
    """

    def __init__(self, config: GPT2Config, vocabulary: int, mesh: Mesh) -> None:
        _check(config)
        self._config = config
        self._vocabulary = vocabulary
        width, tokens = config.embedding_dim, config.max_sequence_length
        by_vocabulary = Split(0, padded=True)
        self.token_embedding = Parameter(
            "token_embedding.weight",
            (vocabulary, width),
            export_name="transformer.wte.weight",
            initial_deviation=INITIAL_DEVIATION,
            split=by_vocabulary,
        )
        self.positions: Variable
        if config.positional_embedding_type == "trainable":
            self.positions = Parameter(
                "position_embedding.weight",
                (tokens, width),
                export_name="transformer.wpe.weight",
                initial_deviation=INITIAL_DEVIATION,
            )
        else:
            self.positions = constant(mesh, sinusoids(tokens, width)[None, None], mesh.dtype)
        self.blocks = [
            Block(f"blocks.{index}", config, f"transformer.h.{index}.") for index in range(config.num_blocks)
        ]
        self.norm = LayerNorm("norm", width, bias=config.bias, export_prefix="transformer.ln_f.")
        self.projection = self.token_embedding
        if not config.weight_tying:
            self.projection = Parameter(
                "projection.weight",
                (vocabulary, width),
                export_name="lm_head.weight",
                initial_deviation=INITIAL_DEVIATION,
                split=by_vocabulary,
            )
        mask = np.triu(np.full((1, 1, tokens, tokens), MASKED, np.float32), 1)
        self._mask = constant(mesh, mask, mesh.dtype)
        self._classes = ops.Vocabulary.on(mesh, vocabulary)

    def parameters(self) -> Iterator[Parameter]:
        """In order of first use in the forward pass; a tied projection is the token embedding, and comes once."""
        yield self.token_embedding
        if isinstance(self.positions, Parameter):
            yield self.positions
        for block in self.blocks:
            yield from block.parameters()
        yield from self.norm.parameters()
        if self.projection is not self.token_embedding:
            yield self.projection

    def loss(self, tape: Tape, inputs: Array, targets: Array) -> Variable:
        """The negative log-likelihood of each target.

        Args:
            tape: of this pass.
            inputs: uint32 [sequences, tokens] token ids; tokens is the model's `max_sequence_length`.
            targets: the same shape: the id that follows each.

        Returns:
            float32 [1, 1, sequences x tokens of one device, 1].
        """
        tt = tape.mesh.tt
        following = batched(
            tape.mesh, targets.reshape(1, 1, -1, 1), dtype=tt.uint32, layout=tt.TILE_LAYOUT, dim=2
        )
        hidden = self._hidden(tape, inputs)
        logits = ops.linear(tape, hidden, self.projection, transpose_weight=True)
        return ops.token_loss(tape, logits, following, self._classes)

    def logits(self, tape: Tape, ids: Array, position: int) -> Variable:
        """What the model says of the token after `position`, as [1, 1, 1, vocabulary].

        Args:
            tape: of this pass, not recording; its mesh must have no data axis.
            ids: uint32 [1, tokens]; what stands after `position` is of no effect.
            position: in [0, tokens).
        """
        row = ops.take_row(tape, self._hidden(tape, ids), position)
        return ops.linear(tape, row, self.projection, transpose_weight=True)

    def _hidden(self, tape: Tape, ids: Array) -> Variable:
        """[1, 1, sequences x tokens of one device, width], ready for the projection."""
        x = ops.add_positions(tape, ops.embedding(tape, ids, self.token_embedding), self.positions)
        x = ops.dropout(tape, x, self._config.dropout_prob, "embedding.dropout")
        for block in self.blocks:
            x = block(tape, x, self._mask)
        return self.norm(tape, x)

    def hugging_face_config(self) -> dict[str, Any]:
        """The fields of transformers' GPT2LMHeadModel."""
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
            # Ours starts and ends no text with a token of its own; the defaults are ids of another tokenizer.
            "bos_token_id": None,
            "eos_token_id": None,
            "torch_dtype": "float32",
        }

    def constant_exports(self) -> dict[str, npt.NDArray[np.float32]]:
        """The zero biases of a model without any, and fixed positions: transformers' GPT-2 wants both."""
        config = self._config
        width = config.embedding_dim
        exports: dict[str, npt.NDArray[np.float32]] = {}
        if config.positional_embedding_type == "fixed":
            exports["transformer.wpe.weight"] = sinusoids(config.max_sequence_length, width)
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


def sinusoids(tokens: int, width: int) -> npt.NDArray[np.float32]:
    """Fixed positions [tokens, width]: sines in the even columns, cosines in the odd ones."""
    columns = np.arange(width)
    angles = np.arange(tokens)[:, None] / 10000.0 ** ((columns - columns % 2) / width)
    return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles)).astype(np.float32)


def _check(config: GPT2Config) -> None:
    if config.max_sequence_length % 32:
        raise Refused(
            f"transformer_config.max_sequence_length: {config.max_sequence_length}, expected a multiple of 32 "
            f"(the device computes in tiles of 32 x 32); take {-(-config.max_sequence_length // 32) * 32}"
        )
