"""A training step that hangs in a pass of a user's own model, for `compute --step`."""

from __future__ import annotations

import os
from typing import Any

from services.config.models import CustomConfig
from training.models.custom import name_own_model_in_errors
from training.step import TrainingStep

HANGS = "amid a pass"
"""Line that is printed once it hangs."""


class HangingStep(TrainingStep):
    """A step whose passes do not end."""

    def micro_batches(self, *arguments: Any) -> list[float]:
        """Hang where a model's exceptions are caught."""
        with name_own_model_in_errors(CustomConfig(model_type="tests.support.hanging_step:Model")):
            print(HANGS)
            reader, _ = os.pipe()
            os.read(reader, 1)
        return []
