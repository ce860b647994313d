"""The parts that models are made of, for models of one's own (docs/own-model.md): the same that ours use."""

from __future__ import annotations

from mesh.device import Mesh
from mesh.placement import Placements
from services.errors import Refused
from worker import ops
from worker.autograd import Parameter, Tape, Tensor, Variable
from worker.models.causal import Masks
from worker.models.model import Array, Model, batched, constant
from worker.models.tokens import Tokens
from worker.modules import LayerNorm, Linear, RMSNorm
from worker.ops.placing import check_whole_rows, gathered
from worker.ops.precision import accurate
from worker.split import Split

__all__ = [
    "Array",
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
