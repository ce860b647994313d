"""Pipelines: the passes of a model's ranges, by the schedule of its stages.

Read `exchange`, how arrays get from range to range; `stages`, the stages that a process has; `activation_memory`, what
their passes keep; `step`, a pipeline in one process; and `measure`, the times of blocks. `services.pipeline` says which
passes run in which order, `training.range_step` runs one.
"""
