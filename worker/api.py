"""Former name of `training.api`, kept for users' models that import it."""

from __future__ import annotations

import warnings

from training.api import *  # noqa: F403

warnings.warn("worker.api is now called training.api: import from there", FutureWarning, stacklevel=2)
