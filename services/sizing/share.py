"""What one chip of a job's mesh has of its tensors: its sequences, its heads and columns, and its weights."""

from __future__ import annotations

from dataclasses import dataclass

from services.config.device import DeviceConfig
from services.config.parameters import ModelPart, ParameterShape
from services.sizing.allocation import TILE, Allocator

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class ChipShare:
    """One chip's share of a job.

    Attributes:
        allocator: sizes of tensors on the chip.
        element_bytes: bytes of a weight or activation.
        batch: sequences or samples of a batch on this chip.
        tokens: tokens of a sequence; 1 for samples.
        data_size: number of chips that share a batch.
        tensor_size: number of chips that share a layer.
        shards_parameters: whether matrices are sharded over the chips that share a batch.
    """

    allocator: Allocator
    element_bytes: int
    batch: int
    tokens: int
    data_size: int
    tensor_size: int
    shards_parameters: bool

    @classmethod
    def of(
        cls, device: DeviceConfig, allocator: Allocator, element_bytes: int, batch_size: int, tokens: int
    ) -> ChipShare:
        """Return the share of a chip in a batch of `batch_size` sequences over a mesh."""
        return cls(
            allocator,
            element_bytes,
            batch_size // device.data_parallel_size,
            tokens,
            device.data_parallel_size,
            device.tensor_parallel_size,
            device.shard_parameters,
        )

    def split(self, size: int) -> int:
        """Return a chip's part of a dimension that tensor-parallel chips share, padded to whole tiles if needed."""
        return -(-size // self.tensor_size)

    def rows(self, width: int, element_bytes: int | None = None) -> int:
        """Return the bytes of [1, 1, sequences x tokens, width]."""
        shape = (self.batch * self.tokens, width)
        return self.allocator.tiled_bytes(shape, element_bytes or self.element_bytes)

    def heads(self, heads: int, width: int) -> int:
        """Return the bytes of [sequences, this chip's heads, tokens, width]."""
        shape = (self.batch, self.split(heads), self.tokens, width)
        return self.allocator.tiled_bytes(shape, self.element_bytes)

    def row_statistics(self) -> int:
        """Return the bytes of one number a row, [1, sequences x tokens]."""
        return self.allocator.tiled_bytes((1, self.batch * self.tokens), self.element_bytes)

    def constant(self, *shape: int, element_bytes: int | None = None) -> int:
        """Return the bytes of a tensor that every chip has whole."""
        return self.allocator.tiled_bytes(shape, element_bytes or self.element_bytes)

    def weight(self, parameter: ParameterShape) -> int:
        """Return the bytes of a parameter as this chip keeps it."""
        shape = self._cut(parameter)
        dim = self._sharded_dim(parameter)
        if dim is not None:
            shape = tuple(size // self.data_size if each == dim else size for each, size in enumerate(shape))
        return self.allocator.tiled_bytes(shape, self.element_bytes)

    def gathered_weight(self, parameter: ParameterShape) -> int:
        """Return the bytes of a parameter as operations use it."""
        return self.allocator.tiled_bytes(self._cut(parameter), self.element_bytes)

    def gradient(self, parameter: ParameterShape) -> int:
        """Return the bytes of a gradient, with what adding it up over the chips that share a batch needs."""
        return self.with_sum(self.gathered_weight(parameter), self.data_size)

    def with_sum(self, operand_bytes: int, chips: int) -> int:
        """Return the bytes of a tensor while it is added up over chips.

        ttnn needs two more tensors of its size, and the shard of the sum.
        """
        return operand_bytes if chips == 1 else 3 * operand_bytes + operand_bytes // chips

    def weights(self, part: ModelPart) -> int:
        """Return the bytes of all weights of a part."""
        return part.copies * sum(self.weight(each) for each in part.shapes.values())

    def is_sharded(self, parameter: ParameterShape) -> bool:
        """Return whether a parameter is sharded over the chips that share a batch."""
        return self._sharded_dim(parameter) is not None

    def _cut(self, parameter: ParameterShape) -> tuple[int, ...]:
        """Return a parameter's shape on a chip before it is sharded over the data axis."""
        return tuple(
            self.split(size) if dim == parameter.cut else size for dim, size in enumerate(parameter.shape)
        )

    def _sharded_dim(self, parameter: ParameterShape) -> int | None:
        """Return the dimension of a matrix that is sharded over the data axis: the first one of whole tiles."""
        if not self.shards_parameters or len(parameter.shape) < 2:
            return None
        cut = parameter.cut if self.tensor_size > 1 else None
        for dim, size in enumerate(parameter.shape):
            if dim != cut and size % (TILE * self.data_size) == 0:
                return dim
        return None
