"""The public API for users' own models (docs/use/own-model.md): the same parts that the shipped models use."""

from __future__ import annotations

from mesh.device import Mesh
from mesh.placement import Placements
from services.errors import Refused
from services.pipeline.split import BlockRange
from training import ops
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Split, Tensor, Variable
from training.models.causal import Masks
from training.models.model import Array, Model, batched, constant
from training.models.tokens import Tokens
from training.modules.layer_norm import (
    LayerNorm,
)
from training.modules.linear import (
    Linear,
)
from training.modules.rms_norm import (
    RMSNorm,
)
from training.ops.placing import check_whole_rows, gathered
from training.ops.precision import accurate

__all__ = [
    "Array",
    "BlockRange",
    "LayerNorm",
    "Linear",
    "Masks",
    "Mesh",
    "Model",
    "Parameter",
    "Placements",
    "RMSNorm",
    "Refused",
    "Split",
    "Tape",
    "Tensor",
    "Tokens",
    "Variable",
    "accurate",
    "batched",
    "check_whole_rows",
    "constant",
    "gathered",
    "ops",
]
