"""Types of the fields of a job's config, and the base class of its records.

Every number, text and list has an upper bound: no message, table or loop of a cluster may grow without limit with a
number that a job chooses. The bounds leave room beyond every training run that we know of. Bounds of products of
several fields are in `bounds.py`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from services.caps import MOST_PARAMETERS, MOST_PRIORITY
from services.names import NAME_CHARACTERS, NAME_PATTERN

MOST_MICRO_BATCHES = 1 << 16
"""Maximum number of micro-batches of a step. Their losses take 512 KiB of a chunk's header."""
LARGEST_FLOAT = 1e30
"""Maximum of numbers without a bound of their own. A float32 holds it."""

PositiveInt = Annotated[int, Field(ge=1, le=2**31 - 1)]
"""Number of steps, at least one. Nothing may loop over it."""
NonNegativeInt = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""Number of steps, possibly none. Nothing may loop over it."""
MicroBatchCount = Annotated[int, Field(ge=1, le=MOST_MICRO_BATCHES)]
"""Factor of the number of micro-batches of a step, or number of workers."""
Priority = Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]
"""Priority of a job in the queue."""
BatchSize = Annotated[int, Field(ge=1, le=2**20)]
"""Sequences or samples of a batch."""
SampleCount = Annotated[int, Field(ge=10, le=2**31 - 1)]
"""Samples of a regression's data, of which a tenth is held out. `bounds.py` limits the data's size."""
MOST_WIDTH = 1 << 20
"""Maximum width of a layer, and number of tokens of a vocabulary."""
Width = Annotated[int, Field(ge=1, le=MOST_WIDTH)]
"""Width of a layer, or rows of a table."""
ElementCount = Annotated[int, Field(ge=1, le=MOST_PARAMETERS)]
"""Parameters of a model, all together."""
HeadCount = Annotated[int, Field(ge=1, le=2**12)]
"""Attention heads of a block."""
BlockCount = Annotated[int, Field(ge=1, le=2**10)]
"""Blocks of a model."""
StageCount = Annotated[int, Field(ge=1, le=2**10)]
"""Stages of a pipeline, each with a block."""
SequenceLength = Annotated[int, Field(ge=1, le=2**24)]
"""Tokens of a sequence."""
AxisLength = Annotated[int, Field(ge=1, le=2**10)]
"""Chips along an axis of a mesh."""
ThreadCount = Annotated[int, Field(ge=1, le=2**10)]
"""Threads of the emulator."""
Probability = Annotated[float, Field(ge=0, lt=1)]
"""Number from 0 to below 1: a dropout probability, a momentum."""
Fraction = Annotated[float, Field(ge=0, le=1)]
"""Number from 0 to 1."""
PositiveFloat = Annotated[float, Field(gt=0, le=LARGEST_FLOAT)]
"""Number above zero."""
NonNegativeFloat = Annotated[float, Field(ge=0, le=LARGEST_FLOAT)]
"""Number, zero or above."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", max_length=64)]
"""sha256 of a file's bytes, in hexadecimal."""
JobId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,100}$", max_length=100)]
"""Id of a job."""
TargetName = Annotated[str, Field(pattern=rf"^{NAME_PATTERN.pattern}$", max_length=NAME_CHARACTERS)]
"""Name of a target of messages about a job."""
NO_NUL_PATTERN = r"^[^\x00]*$"
PathText = Annotated[str, Field(max_length=4096, pattern=NO_NUL_PATTERN)]
"""Path of a file or folder; empty for none. Linux allows no longer one, and no NUL byte."""


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(
            "training_config.project_name: unprintable characters given, expected plain text; remove them"
        )
    return text


PrintableName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
"""Name in one line of printable characters."""


class ConfigRecord(BaseModel):
    """Base of the records: frozen, with finite numbers only, without unknown keys and implicit conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
