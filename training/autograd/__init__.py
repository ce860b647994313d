"""Automatic differentiation over device tensors.

1. `variable`: what operations take and return, parameters among them, and the sum of a variable's gradient.
2. `tape`: the record of a forward pass, and the backward pass that replays it.
"""
