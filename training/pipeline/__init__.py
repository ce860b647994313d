"""Pipelines: the passes of a model's ranges, by the schedule of its stages.

Read `exchange`, how arrays get from range to range; `passes`, those of a lease; `activation_memory`, what they keep;
`submeshes`, where stages are built; and `measure`, the times of blocks. `services.pipeline` says which passes run in
which order, `training.range_step` runs one.
"""
