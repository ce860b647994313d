"""Pipelines of stages, without I/O: the blocks of each stage, and the order of its passes.

Imports errors alone. Read `split`, then `schedule`.
"""
