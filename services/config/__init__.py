"""What people write (tt-train's YAML files), and the complete job that becomes of it."""

from __future__ import annotations

from services.config.job import JobConfig
from services.config.parts import (
    DataConfig,
    DeviceConfig,
    GPT2Config,
    LinearRegressionConfig,
    ModelConfig,
    OptimizerConfig,
    SamplingConfig,
    ScheduleConfig,
)

__all__ = [
    "DataConfig",
    "DeviceConfig",
    "GPT2Config",
    "JobConfig",
    "LinearRegressionConfig",
    "ModelConfig",
    "OptimizerConfig",
    "SamplingConfig",
    "ScheduleConfig",
]
