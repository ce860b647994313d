"""The former name of `training.api`, for models of users that import it."""

from __future__ import annotations

import warnings

from training.api import *  # noqa: F403

warnings.warn("worker.api is now training.api: import from there", FutureWarning, stacklevel=2)
