"""Pipelines of stages, without I/O: the blocks of each stage, the order of its passes, and their times.

Imports errors alone. Read `split`, `schedule`, `credits`, `makespan`, then `timing`.
"""
