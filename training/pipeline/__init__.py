"""A pipeline in one process: all ranges of a model, by the schedule of its stages.

Read `step`. `services.pipeline` says which passes run in which order, `training.range_step` runs one.
"""
