"""The two ends of a language model: the token embedding, and the projection to the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from mesh.device import Mesh
from training import ops
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Split, Variable
from training.models.model import Array, batched
from training.modules.linear import INITIAL_DEVIATION


class Tokens:
    """The token embedding and the projection to the vocabulary; each tensor-parallel device has a part of the tokens.

    Each of the two is made when it is first asked for, because a range of a model's blocks may have only one of them.

    Args:
        mesh: the mesh to run on.
        vocabulary: number of tokens.
        width: width of the residual stream.
        embedding_export: name of the embedding in `model.safetensors`.
        projection_export: name of the projection there; None if it is the embedding.
    """

    def __init__(
        self,
        mesh: Mesh,
        vocabulary: int,
        width: int,
        *,
        embedding_export: str,
        projection_export: str | None,
    ) -> None:
        self._mesh = mesh
        self._size = vocabulary
        self._width = width
        self._embedding_export = embedding_export
        self._projection_export = projection_export

    @property
    def is_tied(self) -> bool:
        """Whether the projection is the embedding."""
        return self._projection_export is None

    @cached_property
    def embedding(self) -> Parameter:
        """Token embedding, [vocabulary, width]."""
        return self._table("token_embedding.weight", self._embedding_export)

    @cached_property
    def projection(self) -> Parameter:
        """Projection to the vocabulary, [vocabulary, width]."""
        if self._projection_export is None:
            return self.embedding
        return self._table("projection.weight", self._projection_export)

    def last_parameters(self) -> Iterator[Parameter]:
        """Yield the projection if it is not the embedding, which a model yields first of all."""
        if not self.is_tied:
            yield self.projection

    def embed(self, tape: Tape, ids: Array) -> Variable:
        """Return [1, 1, sequences x tokens of one device, width] for ids, uint32 [sequences, tokens]."""
        return ops.embedding(tape, ids, self.embedding)

    def loss(self, tape: Tape, hidden: Variable, targets: Array) -> Variable:
        """Return the negative log-likelihood of each target, float32 [1, 1, sequences x tokens of one device, 1].

        Args:
            tape: the tape of this pass.
            hidden: [1, 1, sequences x tokens of one device, width], normalised.
            targets: uint32 [sequences, tokens].
        """
        tt = tape.mesh.tt
        following = batched(
            tape,
            targets,
            dtype=tt.uint32,
            layout=tt.TILE_LAYOUT,
            dim=2,
            prepare=lambda array: array.reshape(1, 1, -1, 1),
        )
        return ops.token_loss(tape, self.logits(tape, hidden), following, self._vocabulary)

    def logits(self, tape: Tape, hidden: Variable) -> Variable:
        """Map [1, 1, N, width] to [1, 1, N, vocabulary]; each tensor-parallel device has the columns of its tokens."""
        return ops.linear(tape, hidden, self.projection, transpose_weight=True)

    def _table(self, name: str, export_name: str) -> Parameter:
        return Parameter(
            name,
            (self._size, self._width),
            export_name=export_name,
            initial_deviation=INITIAL_DEVIATION,
            split=Split(0, padded=True),
        )

    @cached_property
    def _vocabulary(self) -> ops.Vocabulary:
        return ops.Vocabulary.on(self._mesh, self._size)
