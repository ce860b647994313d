"""All trackers by name: what each needs of its process, and how it is opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple, cast

from services.errors import Refused
from services.tracking.tracker import Run, Tracker


class _Entry(NamedTuple):
    """A tracker.

    Attributes:
        module: module of this package that has it.
        opener: class in that module.
        package: importable package that it needs; empty for none.
        variable: variable of the environment that it needs; empty for none.
    """

    module: str
    opener: str
    package: str = ""
    variable: str = ""


_TRACKERS: Mapping[str, _Entry] = {
    "csv": _Entry("line_files", "CsvFile"),
    "jsonl": _Entry("line_files", "JsonLinesFile"),
    "tensorboard": _Entry("tensorboard", "TensorBoardFolder", "tensorboardX"),
    "wandb": _Entry("wandb_run", "WandbRun", "wandb"),
    "mlflow": _Entry("mlflow_run", "MlflowRun", "mlflow", "MLFLOW_TRACKING_URI"),
}
TRACKERS = tuple(_TRACKERS)
"""Names of all trackers."""


def check_trackers(names: Sequence[str], where: str) -> None:
    """Check that this process has the packages and variables that trackers need.

    Args:
        names: names of the trackers.
        where: who is to write them, for people.

    Raises:
        Refused: one is missing; the line has the command that installs it.
    """
    for name in names:
        entry = _TRACKERS[name]
        if entry.package and find_spec(entry.package) is None:
            raise Refused(
                f"training_config.tracking: {name} given, but {entry.package} is not installed {where}; "
                f"run there: pip install 'tiermesh-cluster[{name}]'"
            )
        if entry.variable and not os.environ.get(entry.variable):
            raise Refused(
                f"training_config.tracking: {name} given, but {entry.variable} is not set {where}; set it there, or "
                f"remove {name}"
            )


def open_tracker(name: str, run: Run) -> Tracker:
    """Open a tracker. It may take long, and raise whatever its library raises."""
    entry = _TRACKERS[name]
    opener = getattr(import_module(f"services.tracking.{entry.module}"), entry.opener)
    return cast(Callable[[Run], Tracker], opener)(run)
