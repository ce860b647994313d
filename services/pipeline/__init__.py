"""Pipelines of stages, without I/O: the blocks that each stage has.

Imports nothing of the layers above. Read `split`.
"""
