"""Rows: workers that together hold all stages of a pipeline, and that the rest of the core sees as one worker each.

`forming` decides which worker has which stages (docs/decisions/0044).
"""
